//! Per-layer inputs: every layer gets a small vector of its own for each token, from a second embedding table and from the
//! model's input.
//!
//! Source: Gemma Team 2025, "Gemma 3n", and the reference code of Gemma 4.

use std::f32::consts::FRAC_1_SQRT_2;

use cuelight_shaders::add::Add;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::heads::TakeColumns;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::scale::Scale;

use super::builder::{BuildError, Builder};
use super::streams;
use crate::graph::ValueId;

/// The second embedding table.
const TABLE: &str = "per_layer_token_embd.weight";

/// The inputs of all layers, [rows, layers * width], from the embedding `x`. `None` for a model without them.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn inputs(builder: &mut Builder<'_>, x: ValueId) -> Result<Option<ValueId>, BuildError> {
    let h = builder.h;
    let Some(width) = h.per_layer_input else { return Ok(None) };
    let all = width * h.layers.len();
    // Some tables lack the last tokens, those of images and audio.
    let tokens = builder.weights.rows(TABLE).unwrap_or(h.vocab_size).min(h.vocab_size);
    let table = builder.weights.matrix(TABLE, tokens, all)?;
    let of_token = builder.graph.push_one(Embed::of_known_tokens(table, (width as f32).sqrt()), &[])?;
    let projection = builder.weights.matrix("per_layer_model_proj.weight", all, h.hidden_size)?;
    let projected = builder.graph.push_one(Linear::new(vec![projection], vec![None])?, &[x])?;
    let projected = builder.graph.push_one(Scale::new(1.0 / (h.hidden_size as f32).sqrt()), &[projected])?;
    let normed = builder.grouped_norm("per_layer_proj_norm.weight", width, projected)?;
    let sum = builder.graph.push_one(Add, &[normed, of_token])?;
    Ok(Some(builder.graph.push_one(Scale::new(FRAC_1_SQRT_2), &[sum])?))
}

/// Adds a layer's own input to the residual `x`: gated by it, projected and normed.
///
/// # Errors
/// As [`inputs`].
pub(super) fn add(
    builder: &mut Builder<'_>,
    layer: usize,
    inputs: Option<ValueId>,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let (Some(inputs), Some(width)) = (inputs, builder.h.per_layer_input) else { return Ok(x) };
    let own = builder.graph.push_one(TakeColumns { start: layer * width, len: width }, &[inputs])?;
    let active = streams::active(builder, layer, x)?;
    let gate = builder.linear(layer, &[("inp_gate", width)], active)?[0];
    let gated = builder.graph.push_one(Glu::new(Activation::GeluTanh), &[gate, own])?;
    let projected = builder.linear(layer, &[("proj", builder.h.hidden_size)], gated)?[0];
    let normed = builder.norm(&format!("blk.{layer}.post_norm"), projected)?;
    streams::add_to_others(builder, [x, normed])
}
