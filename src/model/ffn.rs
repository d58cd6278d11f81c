//! Feed-forwards: the half of a layer in which every row is by itself.

use cuelight_shaders::glu::Glu;

use super::{Builder, WireError};
use crate::graph::ValueId;

/// Gate and up, gated activation, down. x: [rows, hidden_size]; returns the same.
pub fn dense(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
    let (hidden_size, intermediate_size) = (builder.h.hidden_size, builder.h.intermediate_size);
    let halves = builder.linear(layer, &[("ffn_gate", intermediate_size), ("ffn_up", intermediate_size)], x)?;
    let gated = builder.graph.push_one(Glu::new(builder.family.activation), &halves)?;
    Ok(builder.linear(layer, &[("ffn_down", hidden_size)], gated)?[0])
}
