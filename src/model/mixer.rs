//! Mixers: the half of a layer in which a row looks at other rows of its sequence.

use cuelight_shaders::attention::{Attention, KvShape};
use cuelight_shaders::rope::Rope;

use super::arch::QkNorm;
use super::rope::{Frequencies, RopeScaling};
use super::{Builder, WireError};
use crate::graph::ValueId;

/// Grouped-query attention: project, norm the heads where the family does, rotate, attend, project back.
///
/// x: [rows, hidden_size]; returns the same.
pub fn grouped_query_attention(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
    let h = builder.h;
    let spec = &builder.family.attention;
    let (query_width, kv_width) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let projected = builder.linear(layer, &[("attn_q", query_width), ("attn_k", kv_width), ("attn_v", kv_width)], x)?;
    let [mut query, mut key, value] = projected[..] else { unreachable!("three weights make three outputs") };
    let query_norm = format!("blk.{layer}.attn_q_norm.weight");
    let norms_heads = match spec.qk_norm {
        QkNorm::Never => false,
        QkNorm::Always => true,
        QkNorm::WhereStored => builder.weights.has(&query_norm),
    };
    if norms_heads {
        query = builder.grouped_norm(&query_norm, h.head_dim, query)?;
        key = builder.grouped_norm(&format!("blk.{layer}.attn_k_norm.weight"), h.head_dim, key)?;
    }

    let Frequencies { values, magnitude } = frequencies(builder, layer)?;
    let rope = Rope::new(h.head_dim, spec.rope_pairs, values.into(), magnitude)?;
    let rotated = builder.graph.push(rope, &[query, key])?;

    let attention = Attention {
        layer,
        n_heads: h.n_heads,
        kv: KvShape::grouped(h.n_kv_heads, h.head_dim),
        scale: h.attention_scale,
        window: h.windows[layer],
        softcap: h.attention_softcap,
        sinks: None,
    };
    let attended = builder.graph.push_one(attention.checked()?, &[rotated[0], rotated[1], value])?;
    Ok(builder.linear(layer, &[("attn_output", h.hidden_size)], attended)?[0])
}

/// Layers with a window may have a base of their own, which is never stretched.
fn frequencies(builder: &mut Builder<'_>, layer: usize) -> Result<Frequencies, WireError> {
    let h = builder.h;
    if let (Some(base), Some(_)) = (h.rope_base_windowed, h.windows[layer]) {
        return Ok(Frequencies::new(base, h.rotary_dim, RopeScaling::None, None));
    }
    let factors = builder.weights.optional_vector("rope_freqs.weight", h.rotary_dim / 2)?;
    Ok(Frequencies::new(h.rope_base, h.rotary_dim, h.rope_scaling, factors.as_deref()))
}
