//! The indexer of attention to selected positions.

use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::pool_rows::{Overlap, PoolRows};
use cuelight_shaders::select_positions::SelectPositions;
use cuelight_shaders::selection::Selection;

use crate::graph::ValueId;
use crate::model::arch::{RopePairs, Section};
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::{AttentionLayer, Indexer, PositionSelection};

use super::rotation::{rotate_last, rotate_pairs};

/// What layers without an indexer do not use, where a file has it for them.
const TENSORS: [&str; 7] = [
    "indexer.attn_q_b.weight",
    "indexer.attn_k.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
    "indexer_compressor_gate.weight",
    "indexer_compressor_ape.weight",
];

/// Appends a layer's selection of positions, and says how many those of a row are. `x` is the input of the mixer, `query_input`
/// that of its query projection.
///
/// Source: DeepSeek-AI 2025, "DeepSeek-V3.2", 2.1.
pub(super) fn select(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, selection): (&AttentionLayer, PositionSelection),
    [x, query_input]: [ValueId; 2],
) -> Result<(ValueId, Selection), BuildError> {
    let selected = match selection {
        PositionSelection::Own(indexer) => own(builder, layer, (attention, indexer), [x, query_input])?,
        PositionSelection::OfEarlierLayer => of_earlier_layer(builder, layer)?,
    };
    builder.selected_positions = Some(selected);
    Ok(selected)
}

/// The selection by the indexer of the layer: project to queries, a normed key and a weight for each head; rotate; form the key of
/// the pool where positions have one; select.
fn own(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, indexer): (&AttentionLayer, Indexer),
    [x, query_input]: [ValueId; 2],
) -> Result<(ValueId, Selection), BuildError> {
    let Indexer { n_heads, head_dim, top_k, pool, rope_pairs } = indexer;
    let query = builder.linear(layer, &[("indexer.attn_q_b", n_heads * head_dim)], query_input)?[0];
    let projected = builder.linear(layer, &[("indexer.attn_k", head_dim), ("indexer.proj", n_heads)], x)?;

    let name = |tensor: &str| format!("blk.{layer}.indexer.k_norm.{tensor}");
    let weight = builder.weights.vector(&name("weight"), head_dim)?;
    let bias = builder.weights.optional_vector(&name("bias"), head_dim)?;
    let epsilon = builder.family.attention.indexer_epsilon.unwrap_or(builder.h.norm_epsilon);
    let key = builder.graph.push_one(LayerNorm::new(weight, bias, epsilon)?, &[projected[0]])?;
    let rotated = rotated(builder, attention, (head_dim, rope_pairs), [query, key])?;
    let key = if pool > 1 { pooled(builder, layer, indexer, [x, rotated[1]])? } else { rotated[1] };
    let op = SelectPositions::new(layer, [n_heads, head_dim, top_k])?.pooled(pool)?;
    Ok((builder.graph.push_one(op, &[rotated[0], key, projected[1]])?, op.selection()))
}

/// Queries and keys of `head_dim` values, of which those of the family's section rotate in these pairs.
fn rotated(
    builder: &mut Builder<'_>,
    attention: &AttentionLayer,
    head: (usize, RopePairs),
    queries_and_keys: [ValueId; 2],
) -> Result<Vec<ValueId>, BuildError> {
    let Some(rope) = attention.rope else { return Ok(queries_and_keys.to_vec()) };
    let rotation = (rope, attention.heads.rotary_dim);
    match builder.family.attention.indexer_section {
        Section::First => rotate_pairs(builder, rotation, head, &queries_and_keys),
        Section::Last => rotate_last(builder, rotation, head, &queries_and_keys),
    }
}

/// The key of the pool of each row up to it.
///
/// Source: GLM-5 Team 2026, "GLM-5.3-Flash" and its reference code.
fn pooled(
    builder: &mut Builder<'_>,
    layer: usize,
    indexer: Indexer,
    [x, key]: [ValueId; 2],
) -> Result<ValueId, BuildError> {
    let Indexer { head_dim, pool, .. } = indexer;
    let gate = builder.linear(layer, &[("indexer_compressor_gate", head_dim)], x)?[0];
    let name = format!("blk.{layer}.indexer_compressor_ape.weight");
    let bias = builder.weights.matrix(&name, pool, head_dim)?.to_f32();
    let state = PositionSelection::Own(indexer).pool_state(layer);
    let op = PoolRows::new(bias.into(), (pool, Overlap::None), state)?;
    Ok(builder.graph.push_one(op, &[key, gate])?)
}

/// The selection of an earlier layer.
fn of_earlier_layer(builder: &mut Builder<'_>, layer: usize) -> Result<(ValueId, Selection), BuildError> {
    TENSORS.iter().for_each(|tensor| builder.weights.ignore(&format!("blk.{layer}.{tensor}")));
    builder.selected_positions.ok_or_else(|| {
        let (what, expected) = ("number of earlier layers with an indexer".to_owned(), "above 0".to_owned());
        ShapeError::Mismatch { op: "attention", what, found: 0, expected }.into()
    })
}
