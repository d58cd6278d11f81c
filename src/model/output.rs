//! What follows the last layer: the hidden values that leave the engine, and the output head.

use cuelight_shaders::heads::JoinHeads;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::select_rows::SelectRows;
use cuelight_shaders::softcap::Softcap;
use cuelight_shaders::weight::Weight;

use super::arch::{EmbeddingNorm, Output};
use super::builder::{BuildError, Builder};
use super::error::ModelError;
use super::{canvas, classifier, streams, vocabulary};
use crate::embedding::{AttentionShape, EmbeddingSpec, Pooling};
use crate::graph::ValueId;

/// Appends the ops after the last layer, whose output is `x`. A file without an output matrix uses that of the token embedding,
/// which is given with its factor. The residuals follow the other hidden values of a row.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn build(
    builder: &mut Builder<'_>,
    token_embedding: (Weight, f32),
    x: ValueId,
    residuals: &[ValueId],
) -> Result<EmbeddingSpec, BuildError> {
    check_residuals(builder, residuals)?;
    if builder.h.denoising.is_some() {
        let logits = head(builder, token_embedding.clone(), x)?;
        canvas::denoise(builder, token_embedding, logits)?;
        return Ok(EmbeddingSpec::of_vectors(Pooling::Last, 0, false));
    }
    if let Some(spec) = &builder.h.classifier {
        let hidden = match builder.h.mean_of_tokens() {
            Some(heads) => {
                let rows = last_norm(builder, x)?;
                let means = classifier::means(builder, heads, rows)?;
                builder.graph.push_one(SelectRows::hidden(), &[means])?
            }
            None => selected_hidden(builder, x)?,
        };
        return classifier::build(builder, spec, hidden);
    }
    if let Some(shape) = attention_weights(builder)? {
        head(builder, token_embedding, x)?;
        let spec = EmbeddingSpec::of_vectors(Pooling::Last, builder.h.hidden_size, false);
        return Ok(EmbeddingSpec { attention: Some(shape), ..spec });
    }
    let is_only = builder.h.pooling.is_some() || builder.family.output.is_embedding_only();
    let hidden = hidden_rows(builder, x)?;
    return_with_residuals(builder, hidden, residuals)?;
    if !is_only {
        head(builder, token_embedding, x)?;
    }
    // Without a pooling in the file, encoders give the mean. Of a decoder, the last token alone has seen the whole text.
    let usual = if builder.family.output.is_embedding_only() { Pooling::Mean } else { Pooling::Last };
    let pooling = builder.h.pooling.unwrap_or(usual);
    Ok(EmbeddingSpec::of_vectors(pooling, builder.graph.width(hidden), is_only))
}

/// The weights of attention that leave the engine in the place of hidden values, of all layers that have some.
fn attention_weights(builder: &mut Builder<'_>) -> Result<Option<AttentionShape>, BuildError> {
    let mut of_layers = std::mem::take(&mut builder.alignments).into_iter();
    let Some((mut heads, mut joined)) = of_layers.next() else { return Ok(None) };
    for (more, weights) in of_layers {
        let [first, second] = [joined, weights].map(|value| builder.graph.width(value));
        joined = builder.graph.push_one(JoinHeads { first, second }, &[joined, weights])?;
        heads += more;
    }
    builder.graph.return_hidden(joined);
    Ok(Some(AttentionShape { heads, frames: builder.h.encoder_rows() }))
}

/// The hidden values of embeddings. Files of embedding models may have projections after the last norm. They are linear,
/// so that of the mean is the mean of theirs.
fn hidden_rows(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let mut hidden = selected_hidden(builder, x)?;
    for name in ["dense_2.weight", "dense_3.weight"] {
        if let Some(outputs) = builder.weights.rows(name) {
            let matrix = builder.weights.matrix(name, outputs, builder.graph.width(hidden))?;
            hidden = builder.graph.push_one(Linear::new(vec![matrix], vec![None])?, &[hidden])?;
        }
    }
    Ok(hidden)
}

/// Refuses residuals of models that have several streams, attend to an encoder, classify or denoise.
fn check_residuals(builder: &Builder<'_>, residuals: &[ValueId]) -> Result<(), BuildError> {
    let h = builder.h;
    let is_other = h.denoising.is_some() || h.classifier.is_some() || h.streams.is_some() || h.encoder_rows() > 0;
    if residuals.is_empty() || !is_other {
        return Ok(());
    }
    let (file, architecture) = (builder.weights.file(), h.architecture.clone());
    Err(ModelError::NoResiduals { file, architecture }.into())
}

/// Lets the hidden values of embeddings leave the engine, with those of residuals behind them.
fn return_with_residuals(builder: &mut Builder<'_>, hidden: ValueId, residuals: &[ValueId]) -> Result<(), BuildError> {
    let mut joined = hidden;
    for residual in residuals {
        let selected = builder.graph.push_one(SelectRows::hidden(), &[*residual])?;
        let [first, second] = [joined, selected].map(|value| builder.graph.width(value));
        joined = builder.graph.push_one(JoinHeads { first, second }, &[joined, selected])?;
    }
    builder.graph.return_hidden(joined);
    Ok(())
}

/// The hidden values after the last norm of the rows that need them. A draft model goes on from those before its norm.
fn selected_hidden(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let rows = builder.graph.push_one(SelectRows::hidden(), &[x])?;
    if builder.h.drafter.is_some() { Ok(rows) } else { last_norm(builder, rows) }
}

fn last_norm(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    if builder.family.output == Output::Nothing || streams::merge_norms(builder) {
        return Ok(x);
    }
    // Some files name the last norm after the embedding.
    let is_named_after_embedding =
        builder.family.embedding_norm != EmbeddingNorm::Stored && builder.weights.has("token_embd_norm.weight");
    builder.norm(if is_named_after_embedding { "token_embd_norm" } else { "output_norm" }, x)
}

/// The logits of the selected rows.
fn head(
    builder: &mut Builder<'_>,
    (embedding, embedding_factor): (Weight, f32),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let h = builder.h;
    let x = builder.graph.push_one(SelectRows::new(), &[x])?;
    let x = last_norm(builder, x)?;
    let (head, factor) = match builder.weights.optional_matrix("output.weight", h.n_logits(), h.hidden_size)? {
        Some(head) => (head, builder.weights.factor("output")?),
        None => (embedding, embedding_factor),
    };
    let bias = builder.weights.optional_vector("output.bias", h.n_logits())?;
    let bias = bias.map(|bias| bias.iter().map(|bias| bias / factor).collect());
    let logits = builder.graph.push_one(Linear::new(vec![head], vec![bias])?, &[x])?;
    let logit_scale = h.logit_scale.unwrap_or(1.0);
    let logits = builder.times(factor * logit_scale, logits)?;
    let logits = vocabulary::adapt_head(builder, [logits, x], logit_scale)?;
    match h.logit_softcap {
        Some(cap) => Ok(builder.graph.push_one(Softcap::new(cap), &[logits])?),
        None => Ok(logits),
    }
}
