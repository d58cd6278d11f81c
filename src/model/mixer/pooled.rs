//! Attention of all heads to one key, which is also the value: in a window, and to entries of pools of positions.
//!
//! Source: DeepSeek-AI 2026, "DeepSeek-V4", 2.3.

use cuelight_shaders::attention::Attention;
use cuelight_shaders::pool_rows::PoolRows;
use cuelight_shaders::rope::{Rope, RopePairs};
use cuelight_shaders::select_positions::SelectPositions;
use cuelight_shaders::selection::Selection;

use super::attend::{attend, attention_op, per_head};
use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::{AttentionLayer, EntryMeans, EntryPools, Indexer, PooledSizes};
use crate::model::rope::frequencies;

/// Project to queries through few values and to one key, norm and rotate both, attend, rotate back, project groups of heads.
///
/// A value is rotated as its key. Its rotation is undone in the output, which so depends on the distances of positions.
pub(super) fn pooled_attention(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, sizes): (&AttentionLayer, PooledSizes),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let (n_heads, head_dim) = (attention.heads.n_heads, attention.heads.head_dim);
    let PooledSizes { query_rank, output_groups, output_rank, pools } = sizes;
    let projected = builder.linear(layer, &[("attn_q_a", query_rank), ("attn_kv", head_dim)], x)?;
    let norm = |stem: &str| format!("blk.{layer}.{stem}.weight");
    let query_input = builder.grouped_norm(&norm("attn_q_a_norm"), query_rank, projected[0])?;
    let query = builder.linear(layer, &[("attn_q_b", n_heads * head_dim)], query_input)?[0];
    let query = builder.norm_by(vec![1.0; head_dim].into(), query)?;
    let key = builder.grouped_norm(&norm("attn_kv_a_norm"), head_dim, projected[1])?;
    let rotated = builder.graph.push(rotation(attention, head_dim, Turn::Forward)?, &[query, key])?;

    let mut inputs = vec![rotated[0], rotated[1]];
    let mut selection = None;
    if let Some(pools) = pools {
        inputs.push(entries(builder, layer, (attention, pools, pools.entries(head_dim)), x)?);
        if let Some(indexer) = pools.indexer {
            let (selected, of_row) = select(builder, layer, (attention, pools, indexer), [x, query_input])?;
            inputs.push(selected);
            selection = Some(of_row);
        }
    }
    let sinks = Some(builder.weights.vector(&norm("attn_sinks"), n_heads)?);
    let op = attention_op(builder, layer, attention, sizes.kv_shape(head_dim));
    let attended = attend(builder, Attention { sinks, selection, ..op }, &inputs)?;
    let attended = builder.graph.push_one(rotation(attention, head_dim, Turn::Back)?, &[attended])?;
    let groups = ("attn_output_a", output_groups);
    let lower = per_head(builder, layer, groups, [output_rank, n_heads * head_dim / output_groups], attended)?;
    Ok(builder.linear(layer, &[("attn_output_b", builder.h.hidden_size)], lower)?[0])
}

/// In which direction heads are rotated.
#[derive(Clone, Copy)]
enum Turn {
    Forward,
    Back,
}

/// The rotation of the last values of heads of `head_dim` values. The frequencies of the others are 0.
fn rotation(attention: &AttentionLayer, head_dim: usize, turn: Turn) -> Result<Rope, BuildError> {
    let Some(rope) = attention.rope else {
        return Ok(Rope::new(head_dim, RopePairs::Interleaved, Vec::new().into(), 1.0)?);
    };
    let rotary_dim = attention.heads.rotary_dim;
    let sign = match turn {
        Turn::Forward => 1.0,
        Turn::Back => -1.0,
    };
    let of_last = frequencies(rope.base, rotary_dim, rope.scaling, None).into_iter().map(|frequency| sign * frequency);
    let all = std::iter::repeat_n(0.0, (head_dim - rotary_dim) / 2).chain(of_last);
    Ok(Rope::new(head_dim, rope.pairs, all.collect(), rope.magnitude)?)
}

/// The entry of the pool of each row up to it: a weighted mean, normed, and rotated as the first position of the pool.
fn entries(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, pools, means): (&AttentionLayer, EntryPools, EntryMeans),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let EntryMeans { stem, channels, .. } = means;
    let width = channels * pools.overlap.parts();
    let (kv, gate) = (format!("{stem}_kv"), format!("{stem}_gate"));
    let projected = builder.linear(layer, &[(&kv, width), (&gate, width)], x)?;
    let bias = builder.weights.matrix(&format!("blk.{layer}.{stem}_ape.weight"), pools.pool, width)?.to_f32();
    let op = PoolRows::new(bias.into(), (pools.pool, pools.overlap), pools.state_part(layer, means))?;
    let mean = builder.graph.push_one(op, &projected)?;
    let normed = builder.grouped_norm(&format!("blk.{layer}.{stem}_norm.weight"), channels, mean)?;
    let rope = rotation(attention, channels, Turn::Forward)?.of_pools(pools.pool);
    Ok(builder.graph.push_one(rope, &[normed])?)
}

/// The pools that the indexer of a layer selects, and how many those of a row are.
fn select(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, pools, indexer): (&AttentionLayer, EntryPools, Indexer),
    [x, query_input]: [ValueId; 2],
) -> Result<(ValueId, Selection), BuildError> {
    let Indexer { n_heads, head_dim, top_k, .. } = indexer;
    let query = builder.linear(layer, &[("indexer.attn_q_b", n_heads * head_dim)], query_input)?[0];
    let query = builder.graph.push_one(rotation(attention, head_dim, Turn::Forward)?, &[query])?;
    let key = entries(builder, layer, (attention, pools, pools.index_keys(indexer)), x)?;
    let weights = builder.linear(layer, &[("indexer.proj", n_heads)], x)?[0];
    let op = SelectPositions::new(layer, [n_heads, head_dim, top_k])?.of_pools(pools.pool);
    Ok((builder.graph.push_one(op, &[query, key, weights])?, op.selection()))
}
