//! The changes of adapters to what has a row for each token: the embedding and the output head.

use cuelight_shaders::lora::LoraDelta;

use super::builder::{BuildError, Builder};
use crate::adapters::projections::{OUTPUT_HEAD, Projection, TOKEN_EMBEDDING};
use crate::graph::ValueId;

/// The rows `y` of the token embedding with the changes of adapters, where the model has them. Canvases also compute with the
/// embedding itself, so that of a model with canvases is not changed.
///
/// # Errors
/// [`BuildError::Shape`] when the rows have another width than the model.
pub(super) fn adapt_embedding(builder: &mut Builder<'_>, y: ValueId) -> Result<ValueId, BuildError> {
    let h = builder.h;
    if h.denoising.is_some() {
        return Ok(y);
    }
    let projection = Projection {
        tensor: TOKEN_EMBEDDING.to_owned(),
        expert: None,
        rows: 0..h.hidden_size,
        columns: h.vocab_size,
        factor: h.embedding_scale,
    };
    match builder.projections.add_of_vocabulary(projection) {
        Some(target) => Ok(builder.graph.push_one(LoraDelta::of_tokens(target), &[y])?),
        None => Ok(y),
    }
}

/// The logits `y` of rows `x` with the changes of adapters. `factor` is part of `y`.
///
/// # Errors
/// As [`adapt_embedding`].
pub(super) fn adapt_head(builder: &mut Builder<'_>, [y, x]: [ValueId; 2], factor: f32) -> Result<ValueId, BuildError> {
    let h = builder.h;
    if h.denoising.is_some() {
        return Ok(y);
    }
    let projection = Projection {
        tensor: OUTPUT_HEAD.to_owned(),
        expert: None,
        rows: 0..h.vocab_size,
        columns: h.hidden_size,
        factor,
    };
    match builder.projections.add_of_vocabulary(projection) {
        Some(target) => Ok(builder.graph.push_one(LoraDelta::new(vec![target]), &[y, x])?),
        None => Ok(y),
    }
}
