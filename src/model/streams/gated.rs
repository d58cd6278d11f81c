//! Streams of which each half of a layer reads the mean, normed and with a gate for each value, and to each of which it adds its
//! output by a gate of the stream.
//!
//! Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::add::Add;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::mix_streams::MixStreams;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;
use cuelight_shaders::stream_gates::StreamGates;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};

/// Each stream of `x`, normed, times its own weights in `tensor`.
pub(super) fn norm(builder: &mut Builder<'_>, tensor: &str, x: ValueId) -> Result<ValueId, BuildError> {
    let (columns, stored) = (builder.graph.width(x), builder.weights.rows(tensor).unwrap_or(1).max(1));
    // Files have them as one vector, or as a row for each stream.
    let weight = builder.weights.matrix(tensor, stored, columns / stored)?.to_f32();
    ShapeError::check("scale_columns", format!("weights of {tensor:?}"), weight.len(), columns)?;
    let normed = builder.norm_by(vec![1.0; builder.h.hidden_size].into(), x)?;
    Ok(builder.graph.push_one(ScaleColumns::new(weight.into()), &[normed])?)
}

/// What a half of a layer reads of the streams, and the gates with which it adds to them. Its tensors start with `stem`.
pub(super) fn read(
    builder: &mut Builder<'_>,
    layer: usize,
    (count, low_rank, stem): (usize, usize, &str),
    x: ValueId,
) -> Result<[ValueId; 2], BuildError> {
    let columns = builder.graph.width(x);
    let normed = norm(builder, &format!("blk.{layer}.{stem}_norm.weight"), x)?;
    let (down, inject) = (format!("{stem}_down"), format!("{stem}_inject"));
    let projected = builder.linear(layer, &[(&down, low_rank), (&inject, count)], normed)?;
    let low = lowered(builder, count, projected[0])?;
    let gates = builder.linear(layer, &[(&format!("{stem}_up"), columns)], low)?[0];
    let read = gated_mean(builder, count, [gates, normed])?;
    let biases = vec![0.0; count].into();
    let added = StreamGates::read_only(count, 1.0 / count as f32, biases, 0.0)?;
    let added = builder.graph.push_one(added, &[projected[1]])?;
    Ok([read, builder.graph.push_one(Scale::new(2.0), &[added])?])
}

/// The values between the two projections that make gates.
fn lowered(builder: &mut Builder<'_>, count: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let scaled = builder.graph.push_one(Scale::new(1.0 / count as f32), &[x])?;
    Ok(builder.graph.push_one(Activate::new(Pointwise::Silu), &[scaled])?)
}

/// The mean of the streams, each value times the logistic function of its gate.
fn gated_mean(builder: &mut Builder<'_>, count: usize, inputs: [ValueId; 2]) -> Result<ValueId, BuildError> {
    let gated = builder.graph.push_one(Glu::new(Activation::Sigmoid), &inputs)?;
    let mean = vec![1.0 / count as f32; count].into();
    Ok(builder.graph.push_one(MixStreams::new(count, mean)?, &[gated])?)
}

/// The streams after a half of a layer, from those before it, its gates and its output.
pub(super) fn write(
    builder: &mut Builder<'_>,
    count: usize,
    [x, gates, output]: [ValueId; 3],
) -> Result<ValueId, BuildError> {
    let spread = MixStreams::new(1, vec![0.0; count].into())?.varied();
    let added = builder.graph.push_one(spread, &[output, gates])?;
    Ok(builder.graph.push_one(Add, &[x, added])?)
}

/// What the output head reads: the mean of the streams as a half of a layer reads it.
pub(super) fn merge(
    builder: &mut Builder<'_>,
    (count, low_rank): (usize, usize),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let columns = builder.graph.width(x);
    let normed = norm(builder, "output_hc_norm.weight", x)?;
    let down = builder.weights.matrix("output_hc_down.weight", low_rank, columns)?;
    let low = builder.graph.push_one(Linear::new(vec![down], vec![None])?, &[normed])?;
    let low = lowered(builder, count, low)?;
    let up = builder.weights.matrix("output_hc_up.weight", columns, low_rank)?;
    let gates = builder.graph.push_one(Linear::new(vec![up], vec![None])?, &[low])?;
    gated_mean(builder, count, [gates, normed])
}
