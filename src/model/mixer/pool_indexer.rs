//! The indexer of grouped attention to pools of positions, whose keys are the means of those of their positions.
//!
//! Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.

use cuelight_shaders::embed::Embed;
use cuelight_shaders::pool_rows::{Overlap, PoolRows};
use cuelight_shaders::scale::Scale;
use cuelight_shaders::select_positions::SelectPositions;
use cuelight_shaders::selection::Selection;
use cuelight_shaders::weight::Weight;

use super::rotation::rope_op;
use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::{AttentionLayer, Indexer, PositionSelection};

/// Appends a layer's selection of pools, and says how many positions those of a row are: project `x`, the input of the mixer, to
/// queries and to a key; form the mean of the keys of each pool; norm and rotate both; select. All heads have the same weight.
pub(super) fn select(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, indexer): (&AttentionLayer, Indexer),
    x: ValueId,
) -> Result<(ValueId, Selection), BuildError> {
    let Indexer { n_heads, head_dim, top_k, pool, rope_pairs } = indexer;
    let widths = [("indexer.q_proj", n_heads * head_dim), ("indexer.k_proj", head_dim)];
    let projected = builder.linear(layer, &widths, x)?;
    let mean = if pool > 1 { mean_of_pool(builder, layer, indexer, projected[1])? } else { projected[1] };
    let name = |stem: &str| format!("blk.{layer}.indexer.{stem}.weight");
    let mut query = builder.grouped_norm(&name("q_norm"), head_dim, projected[0])?;
    let mut key = builder.grouped_norm(&name("k_norm"), head_dim, mean)?;
    if let Some(rope) = attention.rope {
        let op = rope_op(builder, (rope, attention.heads.rotary_dim), (head_dim, rope_pairs))?;
        query = builder.graph.push_one(op.clone(), &[query])?;
        key = builder.graph.push_one(op.of_pools(pool), &[key])?;
    }
    let ones = Weight::from_f32("equal weights of an indexer", 1, n_heads, &vec![1.0; n_heads]);
    let weights = builder.graph.push_one(Embed::of_texts(ones), &[])?;
    let op = SelectPositions::new(layer, [n_heads, head_dim, top_k])?.pooled(pool)?;
    Ok((builder.graph.push_one(op, &[query, key, weights])?, op.selection()))
}

/// The mean of the keys of the pool of each row up to it: with equal gates.
fn mean_of_pool(
    builder: &mut Builder<'_>,
    layer: usize,
    indexer: Indexer,
    key: ValueId,
) -> Result<ValueId, BuildError> {
    let Indexer { head_dim, pool, .. } = indexer;
    let gates = builder.graph.push_one(Scale::new(0.0), &[key])?;
    let state = PositionSelection::Own(indexer).pool_state(layer);
    let op = PoolRows::new(vec![0.0; pool * head_dim].into(), (pool, Overlap::None), state)?;
    Ok(builder.graph.push_one(op, &[key, gates])?)
}
