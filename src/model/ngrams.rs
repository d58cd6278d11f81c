//! Embeddings of n-grams of tokens: one layer adds them to all streams, as much as each stream is similar to them.
//!
//! Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.

use cuelight_shaders::add::Add;
use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::embed_ngrams::EmbedNgrams;
use cuelight_shaders::mix_streams::MixStreams;
use cuelight_shaders::similarity_gates::SimilarityGates;

use super::builder::{BuildError, Builder};
use super::error::ModelError;
use super::layer::NgramSpec;
use super::streams;
use crate::graph::ValueId;

/// The table of embeddings.
const TABLE: &str = "per_layer_token_embd.weight";

/// Appends the embeddings of the n-grams of each row, for models that have these. They come before all other ops.
///
/// # Errors
/// [`BuildError`] when the table is missing or has the wrong shape, or the tokens of some rows would not be known.
pub(super) fn embed(builder: &mut Builder<'_>, takes_embeddings: bool) -> Result<(), BuildError> {
    let Some(ngrams) = &builder.h.ngrams else { return Ok(()) };
    if takes_embeddings {
        let (file, architecture) = (builder.weights.file(), builder.h.architecture.clone());
        return Err(ModelError::NoMedia { file, architecture }.into());
    }
    let table = builder.weights.lookup_table(TABLE, ngrams.columns)?;
    let [_, context] = builder.h.ngram_parts(ngrams);
    let op = EmbedNgrams::new(&table, ngrams.hash.clone(), context)?;
    builder.ngram_rows = Some(builder.graph.push_one(op, &[])?);
    Ok(())
}

/// The streams `x` before a layer, with what it adds of n-grams: a value for all streams times a gate for each, and a convolution
/// of it over rows.
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub(super) fn add(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let (Some(ngrams), Some(rows)) = (&builder.h.ngrams, builder.ngram_rows) else { return Ok(x) };
    if layer != ngrams.layer {
        return Ok(x);
    }
    let (columns, width) = (builder.graph.width(x), builder.h.hidden_size);
    let count = columns / width;
    let projected = builder.linear(layer, &[("ple_key", columns), ("ple_value", width)], rows)?;
    let name = |stem: &str| format!("blk.{layer}.{stem}.weight");
    let key = streams::norm(builder, &name("ple_norm_key"), projected[0])?;
    let query = streams::norm(builder, &name("ple_norm_query"), x)?;
    let gates = builder.graph.push_one(SimilarityGates { count }, &[key, query])?;
    let spread = MixStreams::new(1, vec![0.0; count].into())?.varied();
    let value = builder.graph.push_one(spread, &[projected[1], gates])?;
    let normed = streams::norm(builder, &name("ple_norm_conv"), value)?;
    let local = convolved(builder, ngrams, normed)?;
    let sum = builder.graph.push_one(Add, &[value, local])?;
    Ok(builder.graph.push_one(Add, &[x, sum])?)
}

/// The convolution over rows at the distance of the longest n-gram.
fn convolved(builder: &mut Builder<'_>, ngrams: &NgramSpec, x: ValueId) -> Result<ValueId, BuildError> {
    let name = format!("blk.{}.ple_conv1d.weight", ngrams.layer);
    let weight = builder.weights.matrix(&name, builder.graph.width(x), ngrams.conv_width)?;
    let [part, _] = builder.h.ngram_parts(ngrams);
    let conv = CausalConv::dilated(&weight.to_f32(), ngrams.conv(), part)?.with_silu();
    Ok(builder.graph.push_one(conv, &[x])?)
}
