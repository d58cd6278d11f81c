//! The head of a reranker: the hidden values of one token become the logits of relevance.
//!
//! Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT"; Hugging Face `BertForSequenceClassification`,
//! `XLMRobertaForSequenceClassification`; Zhang et al. 2025, "Qwen3 Embedding".

use cuelight_shaders::matmul::Linear;
use cuelight_shaders::softcap::Softcap;

use super::builder::{BuildError, Builder};
use super::hyperparameters::CLASSIFIER;
use crate::embedding::{EmbeddingSpec, Pooling};
use crate::graph::ValueId;

/// The layer before the head, which most encoders have.
const INNER: &str = "cls.weight";

/// Appends the head after `hidden`. What it gives leaves the engine as hidden values.
///
/// # Errors
/// [`BuildError`] when a tensor has the wrong shape.
pub(super) fn build(builder: &mut Builder<'_>, mut hidden: ValueId) -> Result<EmbeddingSpec, BuildError> {
    if let Some(outputs) = builder.weights.rows(INNER) {
        let inner = linear(builder, "cls", outputs, hidden)?;
        // A soft cap at 1 is the hyperbolic tangent.
        hidden = builder.graph.push_one(Softcap::new(1.0), &[inner])?;
    }
    let outputs = builder.weights.rows(CLASSIFIER).unwrap_or(1);
    let logits = linear(builder, "cls.output", outputs, hidden)?;
    builder.graph.return_hidden(logits);
    // The first token of an encoder is there to stand for the text. Of a decoder, the last token alone has seen it.
    let sees_all = builder.family.output.is_embedding_only();
    let pooling = if sees_all { Pooling::First } else { Pooling::Last };
    Ok(EmbeddingSpec { pooling, width: outputs, is_only: true, relevance: builder.h.classifier })
}

/// The tensors of `stem` times `x`, plus its bias if it has one.
fn linear(builder: &mut Builder<'_>, stem: &str, outputs: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let matrix = builder.weights.matrix(&format!("{stem}.weight"), outputs, builder.graph.width(x))?;
    let bias = builder.weights.optional_vector(&format!("{stem}.bias"), outputs)?;
    Ok(builder.graph.push_one(Linear::new(vec![matrix], vec![bias])?, &[x])?)
}
