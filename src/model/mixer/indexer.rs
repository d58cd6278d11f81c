//! The indexer of attention to selected positions.

use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::select_positions::SelectPositions;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::{AttentionLayer, Indexer, PositionSelection};

use super::rotation::rotate_pairs;

/// What layers without an indexer do not use, where a file has it for them.
const TENSORS: [&str; 5] = ["attn_q_b.weight", "attn_k.weight", "k_norm.weight", "k_norm.bias", "proj.weight"];

/// Added to the variance in the norm of keys. No file has it.
const EPSILON: f32 = 1e-6;

/// Appends a layer's selection of positions: [rows, top_k]. `x` is the input of the mixer, `query_input` that of its query
/// projection.
///
/// Source: DeepSeek-AI 2025, "DeepSeek-V3.2", 2.1.
pub(super) fn select(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, selection): (&AttentionLayer, PositionSelection),
    [x, query_input]: [ValueId; 2],
) -> Result<ValueId, BuildError> {
    let selected = match selection {
        PositionSelection::Own(indexer) => own(builder, layer, (attention, indexer), [x, query_input])?,
        PositionSelection::OfEarlierLayer => of_earlier_layer(builder, layer)?,
    };
    builder.selected_positions = Some(selected);
    Ok(selected)
}

/// The selection by the indexer of the layer: project to queries, a normed key and a weight for each head; rotate; select.
fn own(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, indexer): (&AttentionLayer, Indexer),
    [x, query_input]: [ValueId; 2],
) -> Result<ValueId, BuildError> {
    let Indexer { n_heads, head_dim, top_k, rope_pairs } = indexer;
    let query = builder.linear(layer, &[("indexer.attn_q_b", n_heads * head_dim)], query_input)?[0];
    let projected = builder.linear(layer, &[("indexer.attn_k", head_dim), ("indexer.proj", n_heads)], x)?;

    let name = |tensor: &str| format!("blk.{layer}.indexer.k_norm.{tensor}");
    let weight = builder.weights.vector(&name("weight"), head_dim)?;
    let bias = builder.weights.optional_vector(&name("bias"), head_dim)?;
    let key = builder.graph.push_one(LayerNorm::new(weight, bias, EPSILON)?, &[projected[0]])?;
    let rotated = match attention.rope {
        Some(rope) => rotate_pairs(builder, (rope, attention.heads.rotary_dim), (head_dim, rope_pairs), &[query, key])?,
        None => vec![query, key],
    };
    let op = SelectPositions::new(layer, [n_heads, head_dim, top_k])?;
    Ok(builder.graph.push_one(op, &[rotated[0], rotated[1], projected[1]])?)
}

/// The selection of an earlier layer.
fn of_earlier_layer(builder: &mut Builder<'_>, layer: usize) -> Result<ValueId, BuildError> {
    TENSORS.iter().for_each(|tensor| builder.weights.ignore(&format!("blk.{layer}.indexer.{tensor}")));
    builder.selected_positions.ok_or_else(|| {
        let (what, expected) = ("number of earlier layers with an indexer".to_owned(), "above 0".to_owned());
        ShapeError::Mismatch { op: "attention", what, found: 0, expected }.into()
    })
}
