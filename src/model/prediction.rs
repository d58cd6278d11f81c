//! The input of the layer that predicts one more token: it joins the embedding of a token and the hidden values of the model
//! before it.
//!
//! Source: DeepSeek-V3 (arXiv:2412.19437, section 2.2). The model's hidden values are those after its last norm, as in vLLM.

use cuelight_shaders::heads::JoinHeads;

use super::builder::{BuildError, Builder};
use crate::graph::ValueId;

/// Appends the ops that join the embedding `x` of each row and its hidden values, which the graph takes from its caller.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn join(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let hidden = builder.graph.take(width);
    let token = builder.norm("blk.0.nextn.enorm", x)?;
    let before = builder.norm("blk.0.nextn.hnorm", hidden)?;
    let joined = builder.graph.push_one(JoinHeads { first: width, second: width }, &[token, before])?;
    Ok(builder.linear(0, &[("nextn.eh_proj", width)], joined)?[0])
}
