//! A learnt residual of low rank next to the mixer, in layers whose files have its tensors.
//!
//! Source: Menghani et al. 2024, "LAuReL: Learned Augmented Residual Layer", as in Gemma 3n.

use std::f32::consts::FRAC_1_SQRT_2;

use cuelight_shaders::add::Add;
use cuelight_shaders::scale::Scale;

use super::builder::{BuildError, Builder};
use crate::graph::ValueId;

/// Adds the residual of `normed`, the input of the mixer, to the sum `x` of the stream and the mixer's output. The result is scaled
/// to the magnitude of one.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn add(builder: &mut Builder<'_>, layer: usize, [x, normed]: [ValueId; 2]) -> Result<ValueId, BuildError> {
    let Some(rank) = builder.weights.rows(&format!("blk.{layer}.laurel_l.weight")) else { return Ok(x) };
    let low = builder.linear(layer, &[("laurel_l", rank)], normed)?[0];
    let whole = builder.linear(layer, &[("laurel_r", builder.h.hidden_size)], low)?[0];
    let change = builder.norm(&format!("blk.{layer}.laurel_post_norm"), whole)?;
    let residual = builder.graph.push_one(Add, &[normed, change])?;
    let sum = builder.graph.push_one(Add, &[x, residual])?;
    Ok(builder.graph.push_one(Scale::new(FRAC_1_SQRT_2), &[sum])?)
}
