//! The indexer that selects positions for each head of keys.

use cuelight_shaders::select_positions::SelectPositions;
use cuelight_shaders::selection::Selection;

use super::rotation::rotate;
use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::{AttentionLayer, HeadIndexer};

/// Appends the selection of positions for each head of keys: project to a query for each and to one key, norm and rotate both, select.
/// Says how many positions those of a row are. `x` is the input of the mixer.
///
/// Source: MiniMax 2026, "MiniMax-M3" and its reference code.
pub(super) fn select(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, indexer): (&AttentionLayer, HeadIndexer),
    x: ValueId,
) -> Result<(ValueId, Selection), BuildError> {
    let HeadIndexer { head_dim, top_k, pool, last } = indexer;
    let n_heads = attention.heads.n_kv_heads;
    let widths = [("indexer.q_proj", n_heads * head_dim), ("indexer.k_proj", head_dim)];
    let projected = builder.linear(layer, &widths, x)?;
    let norm = |name: &str| format!("blk.{layer}.indexer.{name}.weight");
    let query = builder.grouped_norm(&norm("q_norm"), head_dim, projected[0])?;
    let key = builder.grouped_norm(&norm("k_norm"), head_dim, projected[1])?;
    let rotated = match attention.rope {
        Some(rope) => rotate(builder, (rope, attention.heads.rotary_dim), head_dim, &[query, key])?,
        None => vec![query, key],
    };
    let op = SelectPositions::new(layer, [n_heads, head_dim, top_k * pool])?.of_each_head(pool, last)?;
    Ok((builder.graph.push_one(op, &rotated)?, op.selection()))
}
