//! Streams of which a layer computes with one, and corrects all by how far its output is from a prediction.
//!
//! Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers", as in Gemma 3n.

use std::sync::Arc;

use cuelight_shaders::add::Add;
use cuelight_shaders::heads::{JoinHeads, TakeColumns};
use cuelight_shaders::match_magnitude::MatchMagnitude;
use cuelight_shaders::matmul::{HeadLinear, Linear};
use cuelight_shaders::mix_streams::MixStreams;
use cuelight_shaders::scale::Scale;
use cuelight_shaders::scale_columns::ScaleColumns;
use cuelight_shaders::softcap::Softcap;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};

/// The streams of the embedding `x`. All but one are projections of it, of its magnitude.
pub(super) fn split(builder: &mut Builder<'_>, count: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let others = (count - 1) * width;
    let projections = builder.weights.matrix("altup_proj.weight", others, width)?;
    let projected = builder.graph.push_one(Linear::new(vec![projections], vec![None])?, &[x])?;
    let scaled = builder.graph.push_one(MatchMagnitude, &[x, projected])?;
    Ok(builder.graph.push_one(JoinHeads { first: width, second: others }, &[x, scaled])?)
}

/// The predicted streams, and the active one of these, which the layer reads.
pub(super) fn read(
    builder: &mut Builder<'_>,
    layer: usize,
    (count, active): (usize, usize),
    x: ValueId,
) -> Result<[ValueId; 2], BuildError> {
    let current = take(builder, active, x)?;
    let coefficients = coefficients(builder, layer, (count, "altup_predict_coef", count * count), current)?;
    let identity: Arc<[f32]> = (0..count * count).map(|at| f32::from(u8::from(at / count == at % count))).collect();
    let predicted = builder.graph.push_one(MixStreams::new(count, identity)?.varied(), &[x, coefficients])?;
    Ok([predicted, take(builder, active, predicted)?])
}

/// The streams after a layer, from the predicted ones, the one that it has read, and its output.
pub(super) fn write(
    builder: &mut Builder<'_>,
    layer: usize,
    count: usize,
    [predicted, input, output]: [ValueId; 3],
) -> Result<ValueId, BuildError> {
    let coefficients = coefficients(builder, layer, (count, "altup_correct_coef", count), output)?;
    let negative = builder.graph.push_one(Scale::new(-1.0), &[input])?;
    let change = builder.graph.push_one(Add, &[output, negative])?;
    let spread = MixStreams::new(1, vec![1.0; count].into())?.varied();
    let changes = builder.graph.push_one(spread, &[change, coefficients])?;
    Ok(builder.graph.push_one(Add, &[predicted, changes])?)
}

/// The active stream, scaled.
pub(super) fn active(
    builder: &mut Builder<'_>,
    layer: usize,
    active: usize,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let scale = builder.weights.vector(&format!("blk.{layer}.altup_correct_scale.weight"), builder.h.hidden_size)?;
    let stream = take(builder, active, x)?;
    Ok(builder.graph.push_one(ScaleColumns::new(scale), &[stream])?)
}

/// The mean of the first stream and of the projections of the others, of its magnitude.
pub(super) fn merge(builder: &mut Builder<'_>, count: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let others = (count - 1) * width;
    let first = take(builder, 0, x)?;
    let rest = builder.graph.push_one(TakeColumns { start: width, len: others }, &[x])?;
    let projections = builder.weights.matrix("altup_unembd_proj.weight", others, width)?;
    let projected = builder.graph.push_one(HeadLinear::new(projections, count - 1)?, &[rest])?;
    let scaled = builder.graph.push_one(MatchMagnitude, &[first, projected])?;
    let all = builder.graph.push_one(JoinHeads { first: width, second: others }, &[first, scaled])?;
    let mean = vec![1.0 / count as f32; count].into();
    Ok(builder.graph.push_one(MixStreams::new(count, mean)?, &[all])?)
}

/// One stream, [rows, hidden_size].
fn take(builder: &mut Builder<'_>, stream: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    Ok(builder.graph.push_one(TakeColumns { start: stream * width, len: width }, &[x])?)
}

/// `len` coefficients of each row, from one of its streams.
fn coefficients(
    builder: &mut Builder<'_>,
    layer: usize,
    (count, stem, len): (usize, &str, usize),
    stream: ValueId,
) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let weight = builder.weights.vector(&format!("blk.{layer}.altup_router_norm.weight"), width)?;
    let normed = builder.norm_by(weight.iter().map(|weight| weight / width as f32).collect(), stream)?;
    let routed = builder.linear(layer, &[("altup_router", count)], normed)?[0];
    let modalities = builder.graph.push_one(Softcap::new(1.0), &[routed])?;
    Ok(builder.linear(layer, &[(stem, len)], modalities)?[0])
}
