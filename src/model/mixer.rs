//! Mixers: the half of a layer in which a row reads other rows of its sequence.

use cuelight_shaders::attention::{Attention, KvShape};
use cuelight_shaders::elementwise::ScaleByPosition;
use cuelight_shaders::heads::{JoinHeads, SplitHeads};
use cuelight_shaders::matmul::HeadLinear;
use cuelight_shaders::rope::Rope;

use super::arch::{Mixer, QkNorm, Values};
use super::builder::{BuildError, Builder};
use super::error::ModelError;
use super::hyperparameters::{Heads, LatentSizes};
use super::rope::{Frequencies, RopeScaling};

use crate::graph::ValueId;

/// Appends the family's mixer. `x` and the result are [rows, hidden_size].
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn mix(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    match builder.family.mixer {
        Mixer::GroupedQueryAttention => grouped_query_attention(builder, layer, x),
        Mixer::LatentAttention => latent_attention(builder, layer, x),
    }
}

/// Grouped-query attention: project, norm the heads where the family does, apply positions, attend, project back.
fn grouped_query_attention(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let h = builder.h;
    let Heads { n_kv_heads, head_dim, .. } = h.heads[layer];
    let [query, key, value] = project(builder, layer, x)?;
    let [query, key] = norm_queries_and_keys(builder, layer, [query, key])?;
    let [query, key] = apply_positions(builder, layer, [query, key])?;
    let attention = Attention {
        layer,
        n_heads: h.n_heads,
        kv: KvShape::grouped(n_kv_heads, head_dim),
        scale: h.attention_scale,
        window: h.windows[layer],
        softcap: h.attention_softcap,
        sinks: builder.weights.optional_vector(&format!("blk.{layer}.attn_sinks.weight"), h.n_heads)?,
    };
    let attended = attend(builder, attention, &[query, key, value])?;
    Ok(builder.linear(layer, &[("attn_output", h.hidden_size)], attended)?[0])
}

/// Query, key and value of each row.
fn project(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<[ValueId; 3], BuildError> {
    let Heads { n_kv_heads, head_dim, .. } = builder.h.heads[layer];
    let (query_width, kv_width) = (builder.h.n_heads * head_dim, n_kv_heads * head_dim);
    let (query, key, value) = (("attn_q", query_width), ("attn_k", kv_width), ("attn_v", kv_width));
    if builder.family.attention.values == Values::AsProjected {
        let projected = builder.linear(layer, &[query, key, value], x)?;
        return Ok([projected[0], projected[1], projected[2]]);
    }
    let has_values = builder.weights.has(&format!("blk.{layer}.attn_v.weight"));
    let weights = if has_values { vec![query, key, value] } else { vec![query, key] };
    let projected = builder.linear(layer, &weights, x)?;
    let value = builder.norm_by(vec![1.0; head_dim].into(), projected[weights.len() - 1])?;
    Ok([projected[0], projected[1], value])
}

/// The norms of heads before rotation.
fn norm_queries_and_keys(
    builder: &mut Builder<'_>,
    layer: usize,
    [query, key]: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let head_dim = builder.h.heads[layer].head_dim;
    let [query_norm, key_norm] = ["attn_q_norm", "attn_k_norm"].map(|stem| format!("blk.{layer}.{stem}.weight"));
    let norms_heads = match builder.family.attention.qk_norm {
        QkNorm::Never | QkNorm::AfterRotation => false,
        QkNorm::Always => true,
        QkNorm::WhereStored => builder.weights.has(&query_norm),
    };
    if !norms_heads {
        return Ok([query, key]);
    }
    let query = builder.grouped_norm(&query_norm, head_dim, query)?;
    Ok([query, builder.grouped_norm(&key_norm, head_dim, key)?])
}

/// Encodes positions: rotates queries and keys, or scales queries by their position.
fn apply_positions(
    builder: &mut Builder<'_>,
    layer: usize,
    [query, key]: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let h = builder.h;
    if let (Some(scale), None) = (h.position_scale, h.windows[layer]) {
        let query = builder.graph.push_one(ScaleByPosition::new(scale.step, scale.strength)?, &[query])?;
        return Ok([query, key]);
    }
    let head_dim = h.heads[layer].head_dim;
    let [query, key] = rotate(builder, layer, head_dim, [query, key])?;
    if !h.norms_rotated_heads {
        return Ok([query, key]);
    }
    let query = builder.norm_by(vec![1.0; head_dim].into(), query)?;
    Ok([query, builder.norm_by(vec![1.0; head_dim].into(), key)?])
}

/// Rotates heads of `head_dim` values.
fn rotate(
    builder: &mut Builder<'_>,
    layer: usize,
    head_dim: usize,
    queries_and_keys: [ValueId; 2],
) -> Result<[ValueId; 2], BuildError> {
    let Frequencies { values, magnitude } = frequencies(builder, layer)?;
    let rope = Rope::new(head_dim, builder.family.attention.rope_pairs, values.into(), magnitude)?;
    let rotated = builder.graph.push(rope, &queries_and_keys)?;
    Ok([rotated[0], rotated[1]])
}

/// The layer's rotary frequencies. Windowed layers may have their own base, to which long-context scaling does not apply.
fn frequencies(builder: &mut Builder<'_>, layer: usize) -> Result<Frequencies, BuildError> {
    let h = builder.h;
    let rotary_dim = h.heads[layer].rotary_dim;
    if let (Some(base), Some(_)) = (h.rope_base_windowed, h.windows[layer]) {
        return Ok(Frequencies::new(base, rotary_dim, RopeScaling::None, None));
    }
    let factors = builder.weights.optional_vector("rope_freqs.weight", rotary_dim / 2)?;
    Ok(Frequencies::new(h.rope_base, rotary_dim, h.rope_scaling, factors.as_deref()))
}

/// Appends the attention op and its KV cache.
fn attend(builder: &mut Builder<'_>, attention: Attention, inputs: &[ValueId]) -> Result<ValueId, BuildError> {
    builder.kv_shapes.push(attention.kv);
    Ok(builder.graph.push_one(attention.checked()?, inputs)?)
}

/// Latent attention: all heads share one latent vector and one rotated section of the keys.
///
/// The key projection of the latent vector is absorbed into the queries and the value projection into the output, so the cache
/// holds only the latent vector and the rotated section. Source: DeepSeek-AI 2024, "DeepSeek-V2", 2.1.
fn latent_attention(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let h = builder.h;
    let missing = || ModelError::NoLatentSizes { file: builder.weights.file() };
    let LatentSizes { rank, key_dim, value_dim } = h.latent.ok_or_else(missing)?;
    let rotary = h.heads[layer].rotary_dim;
    let [query, latent_and_key] = project_latent(builder, layer, (key_dim + rotary, rank + rotary), x)?;

    let sections = builder.graph.push(SplitHeads { first: key_dim, second: rotary }, &[query])?;
    let shared = builder.graph.push(SplitHeads { first: rank, second: rotary }, &[latent_and_key])?;
    let latent = builder.grouped_norm(&format!("blk.{layer}.attn_kv_a_norm.weight"), rank, shared[0])?;
    let [rotated_query, rotated_key] = rotate(builder, layer, rotary, [sections[1], shared[1]])?;

    let absorbed = per_head(builder, layer, "attn_k_b", [rank, key_dim], sections[0])?;
    let join = || JoinHeads { first: rank, second: rotary };
    let query = builder.graph.push_one(join(), &[absorbed, rotated_query])?;
    let key = builder.graph.push_one(join(), &[latent, rotated_key])?;
    let attention = Attention {
        layer,
        n_heads: h.n_heads,
        kv: KvShape::latent(rank + rotary, rank),
        scale: h.attention_scale,
        window: h.windows[layer],
        softcap: h.attention_softcap,
        sinks: None,
    };
    let attended = attend(builder, attention, &[query, key])?;
    let values = per_head(builder, layer, "attn_v_b", [value_dim, rank], attended)?;
    Ok(builder.linear(layer, &[("attn_output", h.hidden_size)], values)?[0])
}

/// The queries of all heads, and the latent vector with the rotated section of the key. Queries go through a low-rank
/// bottleneck where the file has one.
fn project_latent(
    builder: &mut Builder<'_>,
    layer: usize,
    (query_dim, latent_dim): (usize, usize),
    x: ValueId,
) -> Result<[ValueId; 2], BuildError> {
    let query_width = builder.h.n_heads * query_dim;
    let latent = ("attn_kv_a_mqa", latent_dim);
    let Some(query_rank) = builder.weights.rows(&format!("blk.{layer}.attn_q_a.weight")) else {
        let projected = builder.linear(layer, &[("attn_q", query_width), latent], x)?;
        return Ok([projected[0], projected[1]]);
    };
    let projected = builder.linear(layer, &[("attn_q_a", query_rank), latent], x)?;
    let query = builder.grouped_norm(&format!("blk.{layer}.attn_q_a_norm.weight"), query_rank, projected[0])?;
    Ok([builder.linear(layer, &[("attn_q_b", query_width)], query)?[0], projected[1]])
}

/// Multiplies each head by its own matrix, [outputs, columns].
fn per_head(
    builder: &mut Builder<'_>,
    layer: usize,
    stem: &str,
    [outputs, columns]: [usize; 2],
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let n_heads = builder.h.n_heads;
    let weight = builder.weights.matrix(&format!("blk.{layer}.{stem}.weight"), n_heads * outputs, columns)?;
    Ok(builder.graph.push_one(HeadLinear::new(weight, n_heads)?, &[x])?)
}
