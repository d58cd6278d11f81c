//! The ops of a window: convolutions, and the layers of a transformer or a conformer.
//!
//! The token of a row is its row in the table of positions of a transformer.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision".

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::clamp::Clamp;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::weight::Weight;

use super::family::{Family, Layers, Positions};
use super::front::{AfterConvolution, Front, Squares};
use super::grid::TAPS;
use super::sinusoids::sinusoids;
use super::sizes::{AudioSizes, TABLE};
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;
use crate::tower::blocks::BlockBuilder;
use crate::tower::head::{self, HeadOptions};

/// The graphs of an encoder: those of its convolutions, without the second one over time; that of its layers; the projector.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn build(weights: &mut Weights<'_>, family: &Family, sizes: &AudioSizes) -> Result<Vec<Graph>, BuildError> {
    let mut graphs = match family.front {
        Front::OverTime(_) => vec![over_time(weights, sizes)?],
        Front::OverSquares(squares) => over_squares(weights, squares, sizes)?,
    };
    graphs.push(layers(weights, family, sizes)?);
    let options = HeadOptions { epsilon: family.head_epsilon, gate: sizes.blocks.activation.silu_gate() };
    graphs.push(head::build(weights, ("", family.head), &sizes.merge, options)?);
    Ok(graphs)
}

/// The first convolution over time.
fn over_time(weights: &mut Weights<'_>, sizes: &AudioSizes) -> Result<Graph, BuildError> {
    let mut graph = Graph::default();
    convolution(weights, &mut graph, ("a.conv1d.1", sizes.bins, sizes.blocks.hidden))?;
    Ok(graph)
}

/// The GELU of a convolution over gathered rows, with a bias that is stored as a column.
fn convolution(
    weights: &mut Weights<'_>,
    graph: &mut Graph,
    (stem, inputs, outputs): (&str, usize, usize),
) -> Result<ValueId, BuildError> {
    let gathered = graph.take(3 * inputs);
    let kernel = weights.flattened(&format!("{stem}.weight"), outputs, 3 * inputs)?;
    let bias = weights.flattened(&format!("{stem}.bias"), 1, outputs)?.to_f32();
    let x = graph.push_one(Linear::new(vec![kernel], vec![Some(bias.into())])?, &[gathered])?;
    Ok(graph.push_one(Activate::new(Pointwise::Gelu), &[x])?)
}

/// The convolutions over squares.
fn over_squares(weights: &mut Weights<'_>, squares: &Squares, sizes: &AudioSizes) -> Result<Vec<Graph>, BuildError> {
    let inputs = [1].into_iter().chain(sizes.channels.iter().copied());
    let shapes = inputs.zip(&sizes.channels);
    let of_stem = |(stem, (inputs, outputs)): (&&str, (usize, &usize))| {
        over_square(weights, (*stem, [inputs, *outputs]), squares.then)
    };
    squares.stems.iter().zip(shapes).map(of_stem).collect()
}

fn over_square(
    weights: &mut Weights<'_>,
    (stem, [inputs, outputs]): (&str, [usize; 2]),
    then: AfterConvolution,
) -> Result<Graph, BuildError> {
    const EPSILON: f32 = 1e-6;
    let mut graph = Graph::default();
    let gathered = graph.take(TAPS * inputs);
    let kernel = weights.flattened(&format!("{stem}.weight"), outputs, TAPS * inputs)?;
    let bias = format!("{stem}.bias");
    let bias = weights.has(&bias).then(|| weights.flattened(&bias, 1, outputs)).transpose()?;
    let bias = bias.map(|bias| bias.to_f32().into());
    let x = graph.push_one(Linear::new(vec![kernel], vec![bias])?, &[gathered])?;
    match then {
        AfterConvolution::Gelu => graph.push_one(Activate::new(Pointwise::Gelu), &[x])?,
        AfterConvolution::NormAndRelu => {
            let weight = weights.vector(&format!("{stem}.norm.weight"), outputs)?;
            let normed = graph.push_one(LayerNorm::new(weight, None, EPSILON)?, &[x])?;
            graph.push_one(Clamp::within([0.0, f32::INFINITY])?, &[normed])?
        }
    };
    Ok(graph)
}

fn layers(weights: &mut Weights<'_>, family: &Family, sizes: &AudioSizes) -> Result<Graph, BuildError> {
    let mut graph = Graph::default();
    let mut x = front_rows(weights, &mut graph, sizes)?;
    if let Layers::Transformer(of_rows) = family.layers {
        let table = positions(weights, of_rows, sizes)?;
        let positions = graph.push_one(Embed::new(table, 1.0), &[])?;
        x = graph.push_one(Add, &[x, positions])?;
    }
    let mut blocks = BlockBuilder { weights, graph, sizes: sizes.blocks.clone() };
    for layer in 0..sizes.layers {
        let stem = format!("a.blk.{layer}");
        x = match family.layers {
            Layers::Transformer(_) => blocks.layer(&stem, x)?,
            Layers::Conformer(conformer) => conformer.layer(&mut blocks, &stem, x)?,
        };
    }
    if family.norm_before_merging {
        blocks.norm("a.post_ln", x)?;
    }
    Ok(blocks.graph)
}

/// The rows before the first layer: after the second convolution over time, or after the matrix that follows those over squares.
fn front_rows(weights: &mut Weights<'_>, graph: &mut Graph, sizes: &AudioSizes) -> Result<ValueId, BuildError> {
    let hidden = sizes.blocks.hidden;
    let Front::OverSquares(squares) = sizes.front else {
        return convolution(weights, graph, ("a.conv1d.2", hidden, hidden));
    };
    let width = sizes.input_width();
    let joined = graph.take(width);
    let matrix = weights.matrix(&format!("{}.weight", squares.output), hidden, width)?;
    let bias = weights.optional_vector(&format!("{}.bias", squares.output), hidden)?;
    Ok(graph.push_one(Linear::new(vec![matrix], vec![bias])?, &[joined])?)
}

/// The table of positions, one row for each token of a window.
fn positions(weights: &mut Weights<'_>, of_rows: Positions, sizes: &AudioSizes) -> Result<Weight, BuildError> {
    let hidden = sizes.blocks.hidden;
    match of_rows {
        Positions::Table => Ok(weights.matrix(TABLE, sizes.rows, hidden)?),
        Positions::Sinusoids => {
            let period = sizes.period();
            Ok(Weight::from_f32("sinusoids", period, hidden, &sinusoids(0..period, hidden)))
        }
    }
}
