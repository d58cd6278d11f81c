//! A model graph under construction: the file's tensors, the ops so far, and the helpers that mixers and feed-forwards share.

use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::lora::{LoraDelta, Target};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::reorder_columns::ReorderColumns;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::selection::Selection;
use cuelight_shaders::weight::Weight;

use super::arch::{Family, NormKind};
use super::error::ModelError;
use super::hyperparameters::HyperParameters;
use super::weights::Weights;
use crate::adapters::projections::{Projection, Projections};
use crate::checkpoint::Checkpoint;
use crate::engine::AdapterLimits;
use crate::graph::{Graph, ValueId};

/// A model graph under construction.
pub struct Builder<'a> {
    /// The file's tensors.
    pub weights: Weights<'a>,
    /// The ops so far.
    pub graph: Graph,
    /// How this model's layers are built.
    pub family: &'static Family,
    /// The model's hyperparameters.
    pub h: &'a HyperParameters,
    /// The projections that adapters can change.
    pub projections: Projections,
    /// The norms over whole rows that have a weight.
    pub norms: Vec<RowNorm>,
    /// The positions that the newest layer with an indexer has selected, and how many those of a row are.
    pub selected_positions: Option<(ValueId, Selection)>,
    /// The residuals of earlier layers that are kept, one after the other, for models that read these.
    pub kept_residuals: Option<ValueId>,
    /// The embeddings of the n-grams of each row, for models that have these.
    pub ngram_rows: Option<ValueId>,
    /// Of each layer with heads whose weights leave the engine: their number and the weights, [hidden rows, heads * encoder rows].
    pub alignments: Vec<(usize, ValueId)>,
}

/// A norm over whole rows, and the value that it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowNorm {
    /// The tensor of its weight.
    pub weight: String,
    /// The tensor of its bias, if it has one.
    pub bias: Option<String>,
    /// The normalised rows.
    pub output: ValueId,
}

/// Why a graph cannot be built. [`BuildError::in_file`] adds the file's name.
#[derive(Debug)]
pub enum BuildError {
    /// A tensor is missing or has the wrong shape.
    Model(ModelError),
    /// An op does not accept its shapes.
    Shape(ShapeError),
}

impl BuildError {
    /// The error with the file's name.
    #[must_use]
    pub fn in_file(self, checkpoint: &dyn Checkpoint) -> ModelError {
        match self {
            BuildError::Model(error) => error,
            BuildError::Shape(source) => ModelError::Shape { file: checkpoint.path().display().to_string(), source },
        }
    }
}

impl From<ModelError> for BuildError {
    fn from(error: ModelError) -> Self {
        BuildError::Model(error)
    }
}

impl From<ShapeError> for BuildError {
    fn from(error: ShapeError) -> Self {
        BuildError::Shape(error)
    }
}

impl<'a> Builder<'a> {
    /// An empty graph for the model in `checkpoint`. With `adapters`, adapters within these limits can change it.
    #[must_use]
    pub fn new(
        checkpoint: &'a dyn Checkpoint,
        family: &'static Family,
        h: &'a HyperParameters,
        adapters: Option<AdapterLimits>,
    ) -> Self {
        let projections = Projections::new(adapters);
        let (weights, graph) = (Weights::new(checkpoint), Graph::default());
        let (norms, alignments) = (Vec::new(), Vec::new());
        Builder {
            weights,
            graph,
            family,
            h,
            projections,
            norms,
            selected_positions: None,
            kept_residuals: None,
            ngram_rows: None,
            alignments,
        }
    }

    /// A norm over the whole row with the weight of `name`, and for a layer norm its bias where the file has one.
    ///
    /// # Errors
    /// [`BuildError`] when the tensor is missing or has the wrong shape.
    pub fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.graph.width(x);
        let (weight, bias) = match self.family.norm {
            NormKind::Rms => {
                // Files of one architecture name a norm without the usual ending.
                let weight = format!("{name}.weight");
                let tensor: &str = if !self.weights.has(&weight) && self.weights.has(name) { name } else { &weight };
                return self.grouped_norm(tensor, width, x);
            }
            NormKind::LayerUnweighted => (vec![1.0; width].into(), None),
            NormKind::Layer => {
                let weight = self.weights.vector(&format!("{name}.weight"), width)?;
                (weight, self.weights.optional_vector(&format!("{name}.bias"), width)?)
            }
        };
        let bias_name = bias.as_ref().map(|_| format!("{name}.bias"));
        let output = self.graph.push_one(LayerNorm::new(weight, bias, self.h.norm_epsilon)?, &[x])?;
        if self.family.norm == NormKind::Layer {
            self.norms.push(RowNorm { weight: format!("{name}.weight"), bias: bias_name, output });
        }
        Ok(output)
    }

    /// A root-mean-square norm over each run of `group` values of a row.
    ///
    /// # Errors
    /// As [`Builder::norm`].
    pub fn grouped_norm(&mut self, tensor: &str, group: usize, x: ValueId) -> Result<ValueId, BuildError> {
        self.grouped_norm_with(tensor, (group, self.h.norm_epsilon), x)
    }

    /// [`Builder::grouped_norm`] with an epsilon of its own.
    ///
    /// # Errors
    /// As [`Builder::norm`].
    pub fn grouped_norm_with(
        &mut self,
        tensor: &str,
        (group, epsilon): (usize, f32),
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let weight = self.weights.vector(tensor, group)?;
        let output = self.graph.push_one(RmsNorm::new(weight, epsilon), &[x])?;
        if self.graph.width(x) == group {
            self.norms.push(RowNorm { weight: tensor.to_owned(), bias: None, output });
        }
        Ok(output)
    }

    /// A root-mean-square norm over each run of `weight.len()` values of a row.
    ///
    /// # Errors
    /// [`BuildError::Shape`] when the row is not a multiple of that.
    pub fn norm_by(&mut self, weight: Arc<[f32]>, x: ValueId) -> Result<ValueId, BuildError> {
        Ok(self.graph.push_one(RmsNorm::new(weight, self.h.norm_epsilon), &[x])?)
    }

    /// Several projections of one input. Each output is (tensor stem, output size) and has a bias where the file has one.
    ///
    /// # Errors
    /// As [`Builder::norm`].
    pub fn linear(&mut self, layer: usize, outputs: &[(&str, usize)], x: ValueId) -> Result<Vec<ValueId>, BuildError> {
        let columns = self.graph.width(x);
        let mut projections = Vec::with_capacity(outputs.len());
        for (stem, rows) in outputs {
            let stem = format!("blk.{layer}.{stem}");
            let factor = self.weights.factor(&stem)?;
            let bias = self.weights.optional_vector(&format!("{stem}.bias"), *rows)?;
            projections.push(Prepared {
                matrix: self.weights.matrix(&format!("{stem}.weight"), *rows, columns)?,
                bias: bias.map(|bias| before_factor(bias, factor)),
                factor,
                order: self.weights.input_order(&stem, columns)?,
            });
        }
        let products = self.products(projections, x)?;
        let of_layer = outputs.iter().map(|(stem, rows)| (format!("blk.{layer}.{stem}.weight"), 0..*rows));
        self.with_adapters(of_layer, products, x)
    }

    /// The products of `x` with matrices. Neighbours with their inputs in one order share an op.
    fn products(&mut self, projections: Vec<Prepared>, x: ValueId) -> Result<Vec<ValueId>, BuildError> {
        let mut products = Vec::with_capacity(projections.len());
        for group in projections.chunk_by(|a, b| a.order == b.order) {
            let input = self.ordered(group[0].order.clone(), x)?;
            let (matrices, biases) = group.iter().map(|one| (one.matrix.clone(), one.bias.clone())).unzip();
            let outputs = self.graph.push(Linear::new(matrices, biases)?, &[input])?;
            for (product, Prepared { factor, .. }) in outputs.into_iter().zip(group) {
                products.push(self.times(*factor, product)?);
            }
        }
        Ok(products)
    }

    /// The value with its columns in the order of a matrix; the value itself if that is its own.
    fn ordered(&mut self, order: Option<Arc<[f32]>>, x: ValueId) -> Result<ValueId, BuildError> {
        order.map_or(Ok(x), |order| Ok(self.graph.push_one(ReorderColumns::new(order), &[x])?))
    }

    /// The outputs `ys` of projections of `x` with the changes of adapters, where the model has them. The weight of a projection
    /// is some rows of a tensor.
    fn with_adapters(
        &mut self,
        weights: impl Iterator<Item = (String, Range<usize>)>,
        ys: Vec<ValueId>,
        x: ValueId,
    ) -> Result<Vec<ValueId>, BuildError> {
        let columns = self.graph.width(x);
        let projections = weights.map(|(tensor, rows)| Projection { tensor, expert: None, rows, columns, factor: 1.0 });
        let targets: Option<Vec<Target>> = projections.map(|projection| self.projections.add(projection)).collect();
        match targets {
            Some(targets) => Ok(self.graph.push(LoraDelta::new(targets), &[&ys[..], &[x]].concat())?),
            None => Ok(ys),
        }
    }

    /// The value times a factor; the value itself if that is 1.
    ///
    /// # Errors
    /// [`BuildError::Shape`] when the graph has no such value.
    pub fn times(&mut self, factor: f32, x: ValueId) -> Result<ValueId, BuildError> {
        if factor == 1.0 { Ok(x) } else { Ok(self.graph.push_one(Scale::new(factor), &[x])?) }
    }

    /// Several projections of one input whose weights are parts of one tensor, one after the other: (tensor stem, output
    /// sizes).
    ///
    /// # Errors
    /// As [`Builder::norm`].
    pub fn linear_parts(
        &mut self,
        layer: usize,
        (stem, sizes): (&str, &[usize]),
        x: ValueId,
    ) -> Result<Vec<ValueId>, BuildError> {
        let (columns, rows) = (self.graph.width(x), sizes.iter().sum());
        let whole = self.weights.matrix(&format!("blk.{layer}.{stem}.weight"), rows, columns)?;
        let factor = self.weights.factor(&format!("blk.{layer}.{stem}"))?;
        let bias = self.weights.optional_vector(&format!("blk.{layer}.{stem}.bias"), rows)?;
        let bias = bias.map(|bias| before_factor(bias, factor));
        let (mut matrices, mut biases, mut start) = (Vec::new(), Vec::new(), 0);
        for size in sizes {
            let range = start..start + size;
            matrices.push(whole.part(range.clone()));
            biases.push(bias.as_ref().map(|bias| bias[range.clone()].into()));
            start = range.end;
        }
        let order = self.weights.input_order(&format!("blk.{layer}.{stem}"), columns)?;
        let input = self.ordered(order, x)?;
        let products = self.graph.push(Linear::new(matrices, biases)?, &[input])?;
        let products =
            products.into_iter().map(|product| self.times(factor, product)).collect::<Result<Vec<_>, _>>()?;
        let mut end = 0;
        let parts = sizes.iter().map(|size| {
            end += size;
            (format!("blk.{layer}.{stem}.weight"), end - size..end)
        });
        self.with_adapters(parts, products, x)
    }
}

/// A projection with what its product needs.
struct Prepared {
    matrix: Weight,
    bias: Option<Arc<[f32]>>,
    factor: f32,
    /// The inputs in the order of the matrix, where it is not their own.
    order: Option<Arc<[f32]>>,
}

/// The bias to add to a product before it is multiplied by `factor`.
fn before_factor(bias: Arc<[f32]>, factor: f32) -> Arc<[f32]> {
    if factor == 1.0 { bias } else { bias.iter().map(|bias| bias / factor).collect() }
}
