//! The ops of a window: two convolutions over time, of which the second halves the number of rows, and transformer layers.
//!
//! The token of a row is its row in the table of positions.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision".

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::matmul::Linear;

use super::family::Family;
use super::sizes::{AudioSizes, TABLE};
use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;
use crate::model::weights::Weights;
use crate::tower::blocks::BlockBuilder;
use crate::tower::head;

/// The graphs of an encoder: the first convolution; the second one and the layers; the projector.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn build(weights: &mut Weights<'_>, family: &Family, sizes: &AudioSizes) -> Result<[Graph; 3], BuildError> {
    let mut first = Graph::default();
    convolution(weights, &mut first, ("a.conv1d.1", sizes.bins, sizes.blocks.hidden))?;
    let layers = layers(weights, family, sizes)?;
    let head = head::build(weights, ("", family.head), &sizes.merge, family.head_epsilon)?;
    Ok([first, layers, head])
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

fn layers(weights: &mut Weights<'_>, family: &Family, sizes: &AudioSizes) -> Result<Graph, BuildError> {
    let hidden = sizes.blocks.hidden;
    let mut graph = Graph::default();
    let x = convolution(weights, &mut graph, ("a.conv1d.2", hidden, hidden))?;
    let table = weights.matrix(TABLE, sizes.rows, hidden)?;
    let positions = graph.push_one(Embed::new(table, 1.0), &[])?;
    let mut x = graph.push_one(Add, &[x, positions])?;
    let mut blocks = BlockBuilder { weights, graph, sizes: sizes.blocks.clone() };
    for layer in 0..sizes.layers {
        x = blocks.layer(&format!("a.blk.{layer}"), x)?;
    }
    if family.norm_before_merging {
        blocks.norm("a.post_ln", x)?;
    }
    Ok(blocks.graph)
}
