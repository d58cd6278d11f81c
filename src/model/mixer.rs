//! Mixers: the half of a layer in which a row reads other rows of its sequence.

mod attend;
mod delta;
mod head_indexer;
mod indexer;
mod key_delta;
mod pool_indexer;
mod pooled;
mod rotation;
mod selective_scan;
mod short_conv;
mod state_space;

use cuelight_shaders::add::Add;
use cuelight_shaders::attention::{Attention, Window};
use cuelight_shaders::attention_weights::AttentionWeights;
use cuelight_shaders::clamp::Clamp;
use cuelight_shaders::gate_rows::GateRows;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::heads::{JoinHeads, SplitHeads};
use cuelight_shaders::layer_norm::LayerNorm;
use cuelight_shaders::scale_by_position::ScaleByPosition;
use cuelight_shaders::scale_columns::ScaleColumns;

use super::arch::{Gate, QkNormKind, Values};
use super::builder::{BuildError, Builder};
use super::layer::{AttentionLayer, GroupIndexer, Heads, LatentSizes, MixerSpec, PositionSelection};
use crate::graph::ValueId;
use attend::{attend, attention_op, per_head};
use rotation::rotate;

/// Appends a layer's mixer. `x` and the result are [rows, hidden_size].
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn mix(builder: &mut Builder<'_>, layer: usize, spec: &MixerSpec, x: ValueId) -> Result<ValueId, BuildError> {
    match spec {
        MixerSpec::Attention(attention) => grouped_query_attention(builder, layer, (attention, None), x),
        MixerSpec::SelectiveAttention(attention, indexer) => {
            grouped_query_attention(builder, layer, (attention, Some(*indexer)), x)
        }
        MixerSpec::LatentAttention(attention, sizes, selection) => {
            latent_attention(builder, layer, (attention, *sizes, *selection), x)
        }
        MixerSpec::PooledAttention(attention, sizes) => {
            pooled::pooled_attention(builder, layer, (attention, *sizes), x)
        }
        MixerSpec::GatedDelta(sizes) => delta::gated_delta(builder, layer, sizes, x),
        MixerSpec::KeyDelta(sizes) => key_delta::key_delta(builder, layer, sizes, x),
        MixerSpec::ShortConv(sizes) => short_conv::short_conv(builder, layer, sizes, x),
        MixerSpec::SelectiveScan(sizes) => selective_scan::selective_scan(builder, layer, sizes, x),
        MixerSpec::StateSpace(sizes) => state_space::state_space(builder, layer, sizes, x),
        MixerSpec::AttentionNextToStateSpace(attention, sizes) => {
            let attended = grouped_query_attention(builder, layer, (attention, None), x)?;
            let recalled = state_space::state_space(builder, layer, sizes, x)?;
            Ok(builder.graph.push_one(Add, &[attended, recalled])?)
        }
        MixerSpec::Matrix => Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], x)?[0]),
        MixerSpec::None => Ok(x),
    }
}

/// Grouped-query attention: project, norm the heads where the layer does, apply positions, select some where it has an indexer,
/// attend, project back.
fn grouped_query_attention(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, indexer): (&AttentionLayer, Option<GroupIndexer>),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    if attention.reads_layer.is_some() {
        return attention_to_an_earlier_layer(builder, layer, attention, x);
    }
    let ([query, key, value], gate) = project(builder, layer, attention.heads, x)?;
    let [query, key] = norm_queries_and_keys(builder, layer, attention, [query, key])?;
    let [query, key] = apply_positions(builder, layer, attention, [query, key])?;
    let n_heads = attention.heads.n_heads;
    let sinks = builder.weights.optional_vector(&format!("blk.{layer}.attn_sinks.weight"), n_heads)?;
    let selected = match indexer {
        Some(GroupIndexer::Shared(indexer)) => Some(pool_indexer::select(builder, layer, (attention, indexer), x)?),
        Some(GroupIndexer::OfEach(indexer)) => Some(head_indexer::select(builder, layer, (attention, indexer), x)?),
        None => None,
    };
    let selection = selected.map(|(_, selection)| selection);
    let op = Attention { sinks, selection, ..attention_op(builder, layer, attention, attention.kv_shape()) };
    let inputs: Vec<ValueId> =
        [query, key, value].into_iter().chain(selected.map(|(positions, _)| positions)).collect();
    let attended = attend(builder, op, &inputs)?;
    let attended = match gate {
        Some((function, gate)) => gated(builder, function, [gate, attended])?,
        None => attended,
    };
    Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], attended)?[0])
}

/// The outputs of heads times a function of their gates, of which each value or each head has one.
fn gated(builder: &mut Builder<'_>, function: Activation, [gate, heads]: [ValueId; 2]) -> Result<ValueId, BuildError> {
    if builder.graph.width(gate) == builder.graph.width(heads) {
        return Ok(builder.graph.push_one(Glu::new(function), &[gate, heads])?);
    }
    Ok(builder.graph.push_one(GateRows::new(function), &[heads, gate])?)
}

/// Grouped-query attention to the keys and values of an earlier layer. Projections of keys and values that a file has for this
/// layer are not used, except for the rows of an encoder ([`encoder_rows`](super::encoder_rows)).
fn attention_to_an_earlier_layer(
    builder: &mut Builder<'_>,
    layer: usize,
    attention: &AttentionLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let Heads { n_heads, head_dim, rotary_dim, .. } = attention.heads;
    for stem in ["attn_k", "attn_v", "attn_k_norm"] {
        builder.weights.ignore(&format!("blk.{layer}.{stem}.weight"));
    }
    let mut query = builder.linear(layer, &[("attn_q", n_heads * head_dim)], x)?[0];
    if attention.qk_norm.is_some() {
        query = builder.grouped_norm(&format!("blk.{layer}.attn_q_norm.weight"), head_dim, query)?;
    }
    if let Some(rope) = attention.rope {
        query = rotate(builder, (rope, rotary_dim), head_dim, &[query])?[0];
    }
    return_weights(builder, layer, attention, query)?;
    let op = attention_op(builder, layer, attention, attention.kv_shape());
    let attended = attend(builder, op, &[query])?;
    Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], attended)?[0])
}

/// Appends the weights of the heads that tell when tokens are spoken.
fn return_weights(
    builder: &mut Builder<'_>,
    layer: usize,
    attention: &AttentionLayer,
    query: ValueId,
) -> Result<(), BuildError> {
    let AttentionLayer { alignment_heads, scale, window: Some(Window::Before(rows)), .. } = attention else {
        return Ok(());
    };
    if !alignment_heads.is_empty() {
        let heads = (attention.heads.n_heads, &alignment_heads[..]);
        let op = AttentionWeights::new(attention.cache_layer(layer), attention.kv_shape(), heads, *rows, *scale)?;
        let weights = builder.graph.push_one(op, &[query])?;
        builder.alignments.push((alignment_heads.len(), weights));
    }
    Ok(())
}

/// The gate of the heads' outputs and its function.
type HeadGate = (Activation, ValueId);

/// Query, key and value of each row, and the gate of the heads' outputs if there is one.
fn project(
    builder: &mut Builder<'_>,
    layer: usize,
    heads: Heads,
    x: ValueId,
) -> Result<([ValueId; 3], Option<HeadGate>), BuildError> {
    let Heads { n_heads, head_dim, value_dim, .. } = heads;
    match builder.family.attention.gate {
        Gate::Never => Ok((project_parts(builder, layer, heads, n_heads * head_dim, x)?, None)),
        Gate::InQuery => {
            let [query, key, value] = project_parts(builder, layer, heads, 2 * n_heads * head_dim, x)?;
            let parts = builder.graph.push(SplitHeads { first: head_dim, second: head_dim }, &[query])?;
            Ok(([parts[0], key, value], Some((Activation::Sigmoid, parts[1]))))
        }
        Gate::Projected(function) => {
            let gate = projected_gate(builder, layer, (n_heads, value_dim), x)?;
            Ok((project_parts(builder, layer, heads, n_heads * head_dim, x)?, Some((function, gate))))
        }
    }
}

/// The gate with a projection of its own: of each head or of each of its values, as the file has it.
fn projected_gate(
    builder: &mut Builder<'_>,
    layer: usize,
    (n_heads, value_dim): (usize, usize),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let is_per_head = builder.weights.rows(&format!("blk.{layer}.attn_gate.weight")) == Some(n_heads);
    let width = if is_per_head { n_heads } else { n_heads * value_dim };
    Ok(builder.linear(layer, &[("attn_gate", width)], x)?[0])
}

/// The outputs of heads times their gate, if the family has one with a projection of its own.
fn gated_by_projection(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: (usize, usize),
    [x, heads]: [ValueId; 2],
) -> Result<ValueId, BuildError> {
    let Gate::Projected(function) = builder.family.attention.gate else { return Ok(heads) };
    let gate = projected_gate(builder, layer, sizes, x)?;
    gated(builder, function, [gate, heads])
}

/// Query, key and value of each row; the query projection has `query_width` outputs.
fn project_parts(
    builder: &mut Builder<'_>,
    layer: usize,
    heads: Heads,
    query_width: usize,
    x: ValueId,
) -> Result<[ValueId; 3], BuildError> {
    let Heads { n_kv_heads, head_dim, value_dim, .. } = heads;
    let widths = [query_width, n_kv_heads * head_dim, n_kv_heads * value_dim];
    let [query, key, value] = [("attn_q", widths[0]), ("attn_k", widths[1]), ("attn_v", widths[2])];
    let has = |stem: &str| builder.weights.has(&format!("blk.{layer}.{stem}.weight"));
    let projected = if has("attn_qkv") {
        builder.linear_parts(layer, ("attn_qkv", &widths), x)?
    } else if has("attn_v") || builder.family.attention.values == Values::AsProjected {
        builder.linear(layer, &[query, key, value], x)?
    } else {
        builder.linear(layer, &[query, key], x)?
    };
    let [query, key, value] = limited(builder, [projected[0], projected[1], projected[projected.len() - 1]])?;
    Ok(match builder.family.attention.values {
        Values::AsProjected => [query, key, value],
        Values::Normed => [query, key, builder.norm_by(vec![1.0; value_dim].into(), value)?],
    })
}

/// Queries, keys and values within the limit of the file.
fn limited(builder: &mut Builder<'_>, values: [ValueId; 3]) -> Result<[ValueId; 3], BuildError> {
    let Some(limit) = builder.h.qkv_limit else { return Ok(values) };
    let [query, key, value] = values.map(|value| builder.graph.push_one(Clamp::new(limit), &[value]));
    Ok([query?, key?, value?])
}

/// The norms of queries and keys before rotation.
fn norm_queries_and_keys(
    builder: &mut Builder<'_>,
    layer: usize,
    attention: &AttentionLayer,
    queries_and_keys: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let Heads { n_heads, n_kv_heads, head_dim, .. } = attention.heads;
    match attention.qk_norm {
        Some(QkNormKind::Heads) => stored_norms(builder, layer, [head_dim; 2], queries_and_keys),
        Some(QkNormKind::Row) => {
            stored_norms(builder, layer, [n_heads, n_kv_heads].map(|heads| heads * head_dim), queries_and_keys)
        }
        Some(QkNormKind::LayerPerHead) => {
            let [query, key] = queries_and_keys;
            let query = layer_norm_per_head(builder, (layer, "attn_q_norm"), [n_heads, head_dim], query)?;
            Ok([query, layer_norm_per_head(builder, (layer, "attn_k_norm"), [n_kv_heads, head_dim], key)?])
        }
        Some(QkNormKind::RotatedHeads | QkNormKind::RotatedUnweighted) | None => Ok(queries_and_keys),
    }
}

/// A layer norm of each head, with the weights of the file, [heads, head_dim].
fn layer_norm_per_head(
    builder: &mut Builder<'_>,
    (layer, stem): (usize, &str),
    [heads, head_dim]: [usize; 2],
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let weights = builder.weights.matrix(&format!("blk.{layer}.{stem}.weight"), heads, head_dim)?.to_f32();
    let norm = LayerNorm::new(vec![1.0; head_dim].into(), None, builder.h.norm_epsilon)?;
    let normed = builder.graph.push_one(norm, &[x])?;
    Ok(builder.graph.push_one(ScaleColumns::new(weights.into()), &[normed])?)
}

/// The norms of queries and keys, over runs of these lengths, with the weights of the file.
fn stored_norms(
    builder: &mut Builder<'_>,
    layer: usize,
    [query_run, key_run]: [usize; 2],
    [query, key]: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let query = builder.grouped_norm(&format!("blk.{layer}.attn_q_norm.weight"), query_run, query)?;
    Ok([query, builder.grouped_norm(&format!("blk.{layer}.attn_k_norm.weight"), key_run, key)?])
}

/// Encodes positions: rotates queries and keys where the layer does, and scales queries by their position.
fn apply_positions(
    builder: &mut Builder<'_>,
    layer: usize,
    attention: &AttentionLayer,
    [mut query, mut key]: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let head_dim = attention.heads.head_dim;
    if let Some(rope) = attention.rope {
        let rotated = rotate(builder, (rope, attention.heads.rotary_dim), head_dim, &[query, key])?;
        [query, key] = [rotated[0], rotated[1]];
    }
    if attention.qk_norm == Some(QkNormKind::RotatedHeads) {
        [query, key] = stored_norms(builder, layer, [head_dim; 2], [query, key])?;
    } else if attention.qk_norm == Some(QkNormKind::RotatedUnweighted) {
        query = builder.norm_by(vec![1.0; head_dim].into(), query)?;
        key = builder.norm_by(vec![1.0; head_dim].into(), key)?;
    }
    Ok([scale_by_position(builder, attention, query)?, key])
}

/// Queries, scaled by their position in layers that do so.
fn scale_by_position(
    builder: &mut Builder<'_>,
    attention: &AttentionLayer,
    query: ValueId,
) -> Result<ValueId, BuildError> {
    let Some(scale) = attention.position_scale else { return Ok(query) };
    let scale = ScaleByPosition::new(scale.step, scale.strength, scale.first)?;
    Ok(builder.graph.push_one(scale, &[query])?)
}

/// Latent attention: all heads share one latent vector and one rotated section of the keys.
///
/// The key projection of the latent vector is absorbed into the queries and the value projection into the output, so the cache
/// holds only the latent vector and the rotated section. Source: DeepSeek-AI 2024, "DeepSeek-V2", 2.1.
fn latent_attention(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, sizes, selection): (&AttentionLayer, LatentSizes, Option<PositionSelection>),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let LatentSizes { rank, key_dim, value_dim } = sizes;
    let Heads { n_heads, rotary_dim: rotary, .. } = attention.heads;
    let widths = (n_heads * (key_dim + rotary), rank + rotary);
    let [query, latent_and_key, query_input] = project_latent(builder, layer, widths, x)?;
    let selected = match selection {
        Some(selection) => Some(indexer::select(builder, layer, (attention, selection), [x, query_input])?),
        None => None,
    };
    let [query, key] = absorb_keys(builder, layer, (attention, sizes), [query, latent_and_key])?;
    let query = scale_by_position(builder, attention, query)?;
    let sinks = builder.weights.optional_vector(&format!("blk.{layer}.attn_sinks.weight"), n_heads)?;
    let op = attention_op(builder, layer, attention, attention.latent_shape(sizes));
    let op = Attention { sinks, selection: selected.map(|(_, selection)| selection), ..op };
    let inputs: Vec<ValueId> = [query, key].into_iter().chain(selected.map(|(positions, _)| positions)).collect();
    let attended = builder.graph.push_one(op.checked()?, &inputs)?;
    let values = per_head(builder, layer, ("attn_v_b", n_heads), [value_dim, rank], attended)?;
    let values = gated_by_projection(builder, layer, (n_heads, value_dim), [x, values])?;
    Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], values)?[0])
}

/// The queries of latent vectors and the keys: the latent vector, normed, and the rotated section where there is one.
fn absorb_keys(
    builder: &mut Builder<'_>,
    layer: usize,
    (attention, LatentSizes { rank, key_dim, .. }): (&AttentionLayer, LatentSizes),
    [query, latent_and_key]: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let Heads { n_heads, rotary_dim: rotary, .. } = attention.heads;
    let norm = (format!("blk.{layer}.attn_kv_a_norm.weight"), latent_epsilon(builder));
    let keys = ("attn_k_b", n_heads);
    if rotary == 0 {
        let absorbed = per_head(builder, layer, keys, [rank, key_dim], query)?;
        return Ok([absorbed, builder.grouped_norm_with(&norm.0, (rank, norm.1), latent_and_key)?]);
    }
    let sections = builder.graph.push(SplitHeads { first: key_dim, second: rotary }, &[query])?;
    let shared = builder.graph.push(SplitHeads { first: rank, second: rotary }, &[latent_and_key])?;
    let latent = builder.grouped_norm_with(&norm.0, (rank, norm.1), shared[0])?;
    let rotated = match attention.rope {
        Some(rope) => rotate(builder, (rope, rotary), rotary, &[sections[1], shared[1]])?,
        None => vec![sections[1], shared[1]],
    };
    let absorbed = per_head(builder, layer, keys, [rank, key_dim], sections[0])?;
    let join = || JoinHeads { first: rank, second: rotary };
    let query = builder.graph.push_one(join(), &[absorbed, rotated[0]])?;
    Ok([query, builder.graph.push_one(join(), &[latent, rotated[1]])?])
}

/// Added to the mean square in the norms of latent vectors.
fn latent_epsilon(builder: &Builder<'_>) -> f32 {
    builder.family.attention.latent_epsilon.unwrap_or(builder.h.norm_epsilon)
}

/// The queries of all heads, the latent vector with the rotated section of the key, and the input of the query projection.
/// Queries go through a low-rank bottleneck where the file has one.
fn project_latent(
    builder: &mut Builder<'_>,
    layer: usize,
    (query_width, latent_dim): (usize, usize),
    x: ValueId,
) -> Result<[ValueId; 3], BuildError> {
    let latent = ("attn_kv_a_mqa", latent_dim);
    let Some(query_rank) = builder.weights.rows(&format!("blk.{layer}.attn_q_a.weight")) else {
        let projected = builder.linear(layer, &[("attn_q", query_width), latent], x)?;
        return Ok([projected[0], projected[1], x]);
    };
    let projected = builder.linear(layer, &[("attn_q_a", query_rank), latent], x)?;
    let norm = format!("blk.{layer}.attn_q_a_norm.weight");
    let query = builder.grouped_norm_with(&norm, (query_rank, latent_epsilon(builder)), projected[0])?;
    Ok([builder.linear(layer, &[("attn_q_b", query_width)], query)?[0], projected[1], query])
}
