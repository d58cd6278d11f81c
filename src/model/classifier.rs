//! The head of a classifier: the hidden values of one token, or their mean, become the logits of classes. That of a reranker are the
//! logits of relevance.
//!
//! Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT"; Hugging Face `BertForSequenceClassification`,
//! `XLMRobertaForSequenceClassification`, `ModernBertForSequenceClassification`; Zhang et al. 2025, "Qwen3 Embedding".

use cuelight_shaders::activate::{Activate, Pointwise};
use cuelight_shaders::attention::{Attention, EachOther, KvShape};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::softcap::Softcap;

use super::arch::ClassifierHead;
use super::builder::{BuildError, Builder};
use super::hyperparameters::{CLASSIFIER, ClassifierSpec};
use crate::embedding::EmbeddingSpec;
use crate::graph::ValueId;

/// The layer before the logits, which most encoders have.
const INNER: &str = "cls.weight";

/// The norm after that layer.
const NORM: &str = "cls.norm";

/// The factor of scores that are all 0 in float32, next to which those of positions that are not seen stay minus infinity.
const NO_SCORE: f32 = 1e-20;

/// Appends the head after `hidden`. What it gives leaves the engine as hidden values.
///
/// # Errors
/// [`BuildError`] when a tensor has the wrong shape.
pub(super) fn build(
    builder: &mut Builder<'_>,
    spec: &ClassifierSpec,
    mut hidden: ValueId,
) -> Result<EmbeddingSpec, BuildError> {
    if let Some(outputs) = builder.weights.rows(INNER) {
        let inner = linear(builder, "cls", outputs, hidden)?;
        hidden = match builder.family.classifier {
            // A soft cap at 1 is the hyperbolic tangent.
            ClassifierHead::Tanh => builder.graph.push_one(Softcap::new(1.0), &[inner])?,
            ClassifierHead::GeluOfMean => builder.graph.push_one(Activate::new(Pointwise::Gelu), &[inner])?,
        };
    }
    if builder.weights.has(&format!("{NORM}.weight")) {
        hidden = norm(builder, hidden)?;
    }
    let outputs = builder.weights.rows(CLASSIFIER).unwrap_or(1);
    let logits = linear(builder, "cls.output", outputs, hidden)?;
    builder.graph.return_hidden(logits);
    let (relevance, classes) = (spec.relevance, spec.classes);
    Ok(EmbeddingSpec { pooling: spec.rows, width: outputs, is_only: true, relevance, classes, attention: None })
}

/// The mean of all rows of a sequence, in each of its rows: attention whose scores are all alike. Its keys and values are stored after
/// those of the layers.
///
/// # Errors
/// [`BuildError`] when the rows are no multiple of the heads.
pub(super) fn means(builder: &mut Builder<'_>, kv: KvShape, x: ValueId) -> Result<ValueId, BuildError> {
    let attention = Attention {
        layer: builder.h.layers.len(),
        stores: true,
        n_heads: kv.n_kv_heads,
        kv,
        scale: NO_SCORE,
        window: None,
        sees_later: true,
        each_other: EachOther::All,
        softcap: None,
        sinks: None,
        slopes: None,
        selection: None,
    };
    Ok(builder.graph.push_one(attention.checked()?, &[x, x, x])?)
}

/// The tensors of `stem` times `x`, plus its bias if it has one.
fn linear(builder: &mut Builder<'_>, stem: &str, outputs: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let matrix = builder.weights.matrix(&format!("{stem}.weight"), outputs, builder.graph.width(x))?;
    let bias = builder.weights.optional_vector(&format!("{stem}.bias"), outputs)?;
    Ok(builder.graph.push_one(Linear::new(vec![matrix], vec![bias])?, &[x])?)
}

/// The layer norm of the head. Only matrices of the head read it, so no layer is changed with it.
fn norm(builder: &mut Builder<'_>, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.graph.width(x);
    let weight = builder.weights.vector(&format!("{NORM}.weight"), width)?;
    let bias = builder.weights.optional_vector(&format!("{NORM}.bias"), width)?;
    Ok(builder.graph.push_one(LayerNorm::new(weight, bias, builder.h.norm_epsilon)?, &[x])?)
}
