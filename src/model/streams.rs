//! Several residual streams, of which a layer reads a combination and updates all.
//!
//! Between layers the graph has one value with all streams of a row, one after the other: [rows, streams * hidden_size]. Reading
//! and writing are linear combinations with coefficients of each row ([`MixStreams`]). A model with one stream needs none.
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

use super::builder::{BuildError, Builder};
use super::layer::StreamSizes;
use crate::graph::ValueId;

/// What a layer reads of the residual.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The residual that the layer updates: of several streams the predicted ones.
    residual: ValueId,
    /// The input of the layer, [rows, hidden_size].
    pub input: ValueId,
}

/// The residual of the first layer from the embedding `x`. All streams but one are projections of it, of its magnitude.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn split(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let Some(StreamSizes { count, .. }) = builder.h.streams else { return Ok(x) };
    let width = builder.h.hidden_size;
    let others = (count - 1) * width;
    let projections = builder.weights.matrix("altup_proj.weight", others, width)?;
    let projected = builder.graph.push_one(Linear::new(vec![projections], vec![None])?, &[x])?;
    let scaled = builder.graph.push_one(MatchMagnitude, &[x, projected])?;
    Ok(builder.graph.push_one(JoinHeads { first: width, second: others }, &[x, scaled])?)
}

/// What a layer reads: of several streams a prediction of the active one.
///
/// # Errors
/// As [`split`].
pub(super) fn read(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<Reading, BuildError> {
    let Some(StreamSizes { count, active }) = builder.h.streams else { return Ok(Reading { residual: x, input: x }) };
    let current = take(builder, active, x)?;
    let coefficients = coefficients(builder, layer, ("altup_predict_coef", count * count), current)?;
    let identity: Arc<[f32]> = (0..count * count).map(|at| f32::from(u8::from(at / count == at % count))).collect();
    let residual = builder.graph.push_one(MixStreams::new(count, identity)?.varied(), &[x, coefficients])?;
    Ok(Reading { residual, input: take(builder, active, residual)? })
}

/// The residual after a layer whose output is `output`: all streams, changed by how far the output is from the prediction.
///
/// # Errors
/// As [`split`].
pub(super) fn write(
    builder: &mut Builder<'_>,
    layer: usize,
    reading: Reading,
    output: ValueId,
) -> Result<ValueId, BuildError> {
    let Some(StreamSizes { count, .. }) = builder.h.streams else { return Ok(output) };
    let coefficients = coefficients(builder, layer, ("altup_correct_coef", count), output)?;
    let predicted = builder.graph.push_one(Scale::new(-1.0), &[reading.input])?;
    let change = builder.graph.push_one(Add, &[output, predicted])?;
    let spread = MixStreams::new(1, vec![1.0; count].into())?.varied();
    let changes = builder.graph.push_one(spread, &[change, coefficients])?;
    Ok(builder.graph.push_one(Add, &[reading.residual, changes])?)
}

/// The stream that a layer's own input is gated by: the residual, or the active stream, scaled.
///
/// # Errors
/// As [`split`].
pub(super) fn active(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let Some(StreamSizes { active, .. }) = builder.h.streams else { return Ok(x) };
    let scale = builder.weights.vector(&format!("blk.{layer}.altup_correct_scale.weight"), builder.h.hidden_size)?;
    let stream = take(builder, active, x)?;
    Ok(builder.graph.push_one(ScaleColumns::new(scale), &[stream])?)
}

/// The residual `x` plus `y`, [rows, hidden_size], in all streams but the first.
///
/// # Errors
/// As [`split`].
pub(super) fn add_to_others(builder: &mut Builder<'_>, [x, y]: [ValueId; 2]) -> Result<ValueId, BuildError> {
    let added = match builder.h.streams {
        Some(StreamSizes { count, .. }) => {
            let spread = (0..count).map(|stream| f32::from(u8::from(stream > 0))).collect();
            builder.graph.push_one(MixStreams::new(1, spread)?, &[y])?
        }
        None => y,
    };
    Ok(builder.graph.push_one(Add, &[x, added])?)
}

/// One stream of the residual of the last layer: the mean of the first and of the projections of the others, of its magnitude.
///
/// # Errors
/// As [`split`].
pub(super) fn merge(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let Some(StreamSizes { count, .. }) = builder.h.streams else { return Ok(x) };
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

/// The coefficients of each row, from one of its streams.
fn coefficients(
    builder: &mut Builder<'_>,
    layer: usize,
    (stem, count): (&str, usize),
    stream: ValueId,
) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let streams = builder.h.streams.map_or(1, |streams| streams.count);
    let weight = builder.weights.vector(&format!("blk.{layer}.altup_router_norm.weight"), width)?;
    let normed = builder.norm_by(weight.iter().map(|weight| weight / width as f32).collect(), stream)?;
    let routed = builder.linear(layer, &[("altup_router", streams)], normed)?[0];
    let modalities = builder.graph.push_one(Softcap::new(1.0), &[routed])?;
    Ok(builder.linear(layer, &[(stem, count)], modalities)?[0])
}
