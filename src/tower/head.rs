//! The ops of a projector: from merged rows to embedding rows.

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::reorder_columns::ReorderColumns;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;
use cuelight_shaders::weight::Weight;

use super::merge::Merge;
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// A part of what turns merged rows into embedding rows. Tensors are named without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadOp {
    /// A layer norm with this epsilon.
    LayerNorm(&'static str, f32),
    /// The same, where the file has it.
    OptionalLayerNorm(&'static str, f32),
    /// A root-mean-square norm with the epsilon of the projector.
    RmsNorm(&'static str),
    /// The same without a weight.
    UnweightedNorm,
    /// Values times the root of their number.
    TimesRootOfWidth,
    /// Values minus those of the first tensor, times those of the second, where the file has them. Their names are whole.
    OptionalStandard([&'static str; 2]),
    /// A matrix, with a bias where the file has one.
    Linear(&'static str),
    /// A matrix, where the file has it, for joined patches in another order: the first value of each patch, then the second one of
    /// each, and so on.
    OptionalByValue(&'static str),
    /// A convolution over the patches that are joined, whose kernels have the patches innermost, with a bias where the file has one.
    Convolution(&'static str),
    /// A feed-forward with SiLU, limited as those of the layers: gate, up and down projections.
    GatedFeedForward([&'static str; 3]),
    /// A matrix that is stored with a row for each input.
    LinearOfColumns(&'static str),
    /// A matrix, of whose outputs the second half is the gate of the first, with SiLU.
    GatedLinear(&'static str),
    /// The exact GELU.
    Gelu,
}

/// What a projector has from its tower.
#[derive(Debug, Clone, Copy)]
pub struct HeadOptions {
    /// The epsilon of norms that have none of their own.
    pub epsilon: f32,
    /// How feed-forwards are gated.
    pub gate: Activation,
}

/// The graph of a projector for merged rows, whose tensors begin with `prefix`.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn build(
    weights: &mut Weights<'_>,
    (prefix, ops): (&str, &[HeadOp]),
    merge: &Merge,
    options: HeadOptions,
) -> Result<Graph, BuildError> {
    let mut head = HeadBuilder { weights, graph: Graph::default(), prefix, options };
    let mut x = head.graph.take(merge.width());
    for op in ops {
        x = match *op {
            HeadOp::OptionalLayerNorm(stem, _) if !head.weights.has(&head.name(stem, "weight")) => x,
            HeadOp::OptionalByValue(stem) if !head.weights.has(&head.name(stem, "weight")) => x,
            HeadOp::OptionalByValue(stem) | HeadOp::Convolution(stem) => {
                let by_value = head.graph.push_one(ReorderColumns::new(by_value(merge).into()), &[x])?;
                head.flattened(stem, by_value)?
            }
            op => head.push(op, x)?,
        };
    }
    Ok(head.graph)
}

/// The columns of joined patches with the first value of each patch first, then the second one of each, and so on.
fn by_value(merge: &Merge) -> Vec<f32> {
    let Merge { neighbours, hidden, .. } = *merge;
    (0..hidden).flat_map(|value| (0..neighbours).map(move |patch| (patch * hidden + value) as f32)).collect()
}

/// A projector under construction.
struct HeadBuilder<'a, 'b> {
    weights: &'a mut Weights<'b>,
    graph: Graph,
    /// What the names of its tensors begin with.
    prefix: &'a str,
    options: HeadOptions,
}

impl HeadBuilder<'_, '_> {
    fn name(&self, stem: &str, part: &str) -> String {
        format!("{}{stem}.{part}", self.prefix)
    }

    fn push(&mut self, op: HeadOp, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.graph.width(x);
        match op {
            HeadOp::LayerNorm(stem, epsilon) | HeadOp::OptionalLayerNorm(stem, epsilon) => {
                let weight = self.weights.vector(&self.name(stem, "weight"), width)?;
                let bias = self.weights.optional_vector(&self.name(stem, "bias"), width)?;
                Ok(self.graph.push_one(LayerNorm::new(weight, bias, epsilon)?, &[x])?)
            }
            HeadOp::RmsNorm(stem) => {
                let weight = self.weights.vector(&self.name(stem, "weight"), width)?;
                Ok(self.graph.push_one(RmsNorm::new(weight, self.options.epsilon), &[x])?)
            }
            HeadOp::UnweightedNorm => {
                Ok(self.graph.push_one(RmsNorm::new(vec![1.0; width].into(), self.options.epsilon), &[x])?)
            }
            HeadOp::TimesRootOfWidth => Ok(self.graph.push_one(Scale::new((width as f32).sqrt()), &[x])?),
            HeadOp::OptionalStandard(names) => self.standard(names, x),
            HeadOp::OptionalByValue(stem) | HeadOp::Convolution(stem) => self.flattened(stem, x),
            HeadOp::Linear(stem) => {
                let name = self.name(stem, "weight");
                // A missing tensor is reported as such, and not as one of another shape.
                let rows = self.weights.rows(&name).unwrap_or(1);
                let matrix = self.weights.matrix(&name, rows, width)?;
                let bias = self.weights.optional_vector(&self.name(stem, "bias"), rows)?;
                Ok(self.graph.push_one(Linear::new(vec![matrix], vec![bias])?, &[x])?)
            }
            HeadOp::LinearOfColumns(stem) => {
                let name = self.name(stem, "weight");
                let outputs = self.weights.columns(&name).unwrap_or(1);
                let matrix = transposed(&self.weights.matrix(&name, width, outputs)?);
                Ok(self.graph.push_one(Linear::new(vec![matrix], vec![None])?, &[x])?)
            }
            HeadOp::GatedLinear(stem) => {
                let name = self.name(stem, "weight");
                let rows = self.weights.rows(&name).unwrap_or(2);
                let matrix = self.weights.matrix(&name, rows, width)?;
                let halves = [0..rows / 2, rows / 2..rows].map(|rows| matrix.part(rows));
                let projected = self.graph.push(Linear::new(halves.into(), vec![None, None])?, &[x])?;
                Ok(self.graph.push_one(Glu::new(Activation::Silu), &[projected[1], projected[0]])?)
            }
            HeadOp::GatedFeedForward([gate, up, down]) => {
                let gate = self.push(HeadOp::Linear(gate), x)?;
                let up = self.push(HeadOp::Linear(up), x)?;
                let gated = self.graph.push_one(Glu::new(self.options.gate), &[gate, up])?;
                self.push(HeadOp::Linear(down), gated)
            }
            HeadOp::Gelu => Ok(self.graph.push_one(Activate::new(Pointwise::Gelu), &[x])?),
        }
    }

    /// A matrix whose columns may be several dimensions of its tensor, with a bias where the file has one.
    fn flattened(&mut self, stem: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let (name, width) = (self.name(stem, "weight"), self.graph.width(x));
        let stored = self.weights.rows(&name).unwrap_or(1) * self.weights.columns(&name).unwrap_or(1);
        let rows = (stored / width).max(1);
        let matrix = self.weights.flattened(&name, rows, width)?;
        let bias = self.weights.optional_vector(&self.name(stem, "bias"), rows)?;
        Ok(self.graph.push_one(Linear::new(vec![matrix], vec![bias])?, &[x])?)
    }

    /// Values minus those of a tensor, times those of another one.
    fn standard(&mut self, [mean, factors]: [&str; 2], x: ValueId) -> Result<ValueId, BuildError> {
        if !self.weights.has(mean) && !self.weights.has(factors) {
            return Ok(x);
        }
        let width = self.graph.width(x);
        let minus: Vec<f32> = self.weights.vector(mean, width)?.iter().map(|mean| -mean).collect();
        // A table of one row is that row for every row.
        let minus = Embed::of_texts(Weight::from_f32(mean, 1, width, &minus));
        let minus = self.graph.push_one(minus, &[])?;
        let centered = self.graph.push_one(Add, &[x, minus])?;
        Ok(self.graph.push_one(ScaleColumns::new(self.weights.vector(factors, width)?), &[centered])?)
    }
}

/// The matrix with a row for each column, in float32.
fn transposed(matrix: &Weight) -> Weight {
    let values = matrix.to_f32();
    let [rows, columns] = [matrix.rows, matrix.columns];
    let of_column = |column: usize| (0..rows).map(move |row| (row, column));
    let transposed: Vec<f32> =
        (0..columns).flat_map(of_column).map(|(row, column)| values[row * columns + column]).collect();
    Weight::from_f32(&matrix.name, columns, rows, &transposed)
}
