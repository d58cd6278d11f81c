//! What models that generate blocks compute of the rows of a canvas: their input, and what the next step needs of their logits.
//!
//! Source: transformers' `DiffusionGemmaForBlockDiffusion`.

use cuelight_shaders::add::Add;
use cuelight_shaders::canvas_rows::CanvasRows;
use cuelight_shaders::denoise::Denoise;
use cuelight_shaders::glu::Glu;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::weight::Weight;

use super::arch::FeedForward;
use super::builder::{BuildError, Builder};
use super::error::ModelError;
use crate::graph::ValueId;

/// The input of all rows from their embedding `x`. A row of a canvas adds a feed-forward of the embedding that the step before
/// expected, which the graph takes from its caller, and is normalised.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn input(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let expected = builder.graph.take(width);
    let normed = builder.norm("self_cond_pre_norm", expected)?;
    let intermediate = builder.weights.rows("self_cond_up.weight").unwrap_or(width);
    let [gate, up] =
        ["self_cond_gate.weight", "self_cond_up.weight"].map(|name| builder.weights.matrix(name, intermediate, width));
    let halves = builder.graph.push(Linear::new(vec![gate?, up?], vec![None, None])?, &[normed])?;
    let FeedForward::Gated(function) = builder.family.feed_forward else {
        return Err(ModelError::UngatedCanvas { architecture: builder.h.architecture.clone() }.into());
    };
    let gated = builder.graph.push_one(Glu::new(function), &halves)?;
    let down = builder.weights.matrix("self_cond_down.weight", width, intermediate)?;
    let signal = builder.graph.push_one(Linear::new(vec![down], vec![None])?, &[gated])?;
    let sum = builder.graph.push_one(Add, &[x, signal])?;
    let canvas = builder.norm_by(vec![1.0; width].into(), sum)?;
    Ok(builder.graph.push_one(CanvasRows::select(), &[x, canvas])?)
}

/// The output of a layer: multiplied by a factor, and for rows of a canvas by another.
///
/// # Errors
/// [`BuildError::Shape`] when the graph has no such value.
pub(super) fn scaled(builder: &mut Builder<'_>, factor: f32, canvas: f32, x: ValueId) -> Result<ValueId, BuildError> {
    Ok(builder.graph.push_one(CanvasRows::scale(factor, canvas), &[x])?)
}

/// Appends what the next step needs of the logits. The expected embeddings leave the engine as hidden values.
///
/// # Errors
/// [`BuildError::Shape`] when the vocabulary is too large.
pub(super) fn denoise(
    builder: &mut Builder<'_>,
    (embedding, factor): (Weight, f32),
    logits: ValueId,
) -> Result<(), BuildError> {
    let outputs = builder.graph.push(Denoise::new(embedding, builder.h.embedding_scale * factor)?, &[logits])?;
    builder.graph.return_hidden(outputs[0]);
    Ok(())
}
