//! The input of a draft model that computes with the residuals of the model whose tokens it drafts.
//!
//! A row has a token and the hidden values of the position before it: residuals of the model, which one matrix makes as wide as
//! the draft model, or for the later tokens of a draft what the draft model itself has returned. Attention of the first layer reads
//! both, normalised; the residual stream goes on from the hidden values alone.
//!
//! Source: Li et al. 2025, "EAGLE-3" (arXiv:2503.01840), as in vLLM.

use cuelight_shaders::add::Add;
use cuelight_shaders::heads::{JoinHeads, TakeColumns};
use cuelight_shaders::matmul::Linear;

use super::builder::{BuildError, Builder};
use super::layer::DrafterSpec;
use crate::engine::HiddenInput;
use crate::graph::ValueId;

/// Appends the ops before the first layer, given the embedding `x` of each row: the residual stream, and what attention of the
/// first layer reads.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn input(builder: &mut Builder<'_>, spec: &DrafterSpec, x: ValueId) -> Result<[ValueId; 2], BuildError> {
    let width = builder.h.hidden_size;
    let HiddenInput { of_model, own } = spec.input(width);
    let given = builder.graph.take(of_model + own);
    let residuals = builder.graph.push_one(TakeColumns { start: 0, len: of_model }, &[given])?;
    let own = builder.graph.push_one(TakeColumns { start: of_model, len: own }, &[given])?;
    let matrix = builder.weights.matrix("fc.weight", width, of_model)?;
    let joined = builder.graph.push_one(Linear::new(vec![matrix], vec![None])?, &[residuals])?;
    let factor = builder.weights.factor("fc")?;
    let joined = builder.times(factor, joined)?;
    // One of the two is 0.
    let hidden = builder.graph.push_one(Add, &[joined, own])?;
    let token = builder.norm("blk.0.attn_norm", x)?;
    let normed = builder.norm("blk.0.attn_norm_2", hidden)?;
    let both = builder.graph.push_one(JoinHeads { first: width, second: width }, &[token, normed])?;
    Ok([if spec.norm_before_residual { normed } else { hidden }, both])
}
