//! What the kinds of attention share.

use cuelight_shaders::attention::{Attention, KvShape};
use cuelight_shaders::matmul::HeadLinear;

use crate::graph::ValueId;
use crate::model::alibi::slopes;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::AttentionLayer;

/// The outputs of heads, times the factor of the file.
pub(super) fn attend(builder: &mut Builder<'_>, op: Attention, inputs: &[ValueId]) -> Result<ValueId, BuildError> {
    let attended = builder.graph.push_one(op.checked()?, inputs)?;
    builder.times(builder.h.attention_value_scale.unwrap_or(1.0), attended)
}

/// The attention op of a layer, without sinks.
pub(super) fn attention_op(builder: &Builder<'_>, layer: usize, attention: &AttentionLayer, kv: KvShape) -> Attention {
    Attention {
        layer: attention.cache_layer(layer),
        stores: attention.reads_layer.is_none(),
        n_heads: attention.heads.n_heads,
        kv,
        scale: attention.scale,
        window: attention.window,
        sees_later: attention.sees_later,
        each_other: attention.each_other,
        softcap: builder.h.attention_softcap,
        sinks: None,
        slopes: attention.max_alibi_bias.map(|bias| slopes(attention.heads.n_heads, bias)),
        selection: None,
    }
}

/// Multiplies each head by its own matrix, [outputs, columns].
pub(super) fn per_head(
    builder: &mut Builder<'_>,
    layer: usize,
    (stem, n_heads): (&str, usize),
    [outputs, columns]: [usize; 2],
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let weight = builder.weights.matrix(&format!("blk.{layer}.{stem}.weight"), n_heads * outputs, columns)?;
    Ok(builder.graph.push_one(HeadLinear::new(weight, n_heads)?, &[x])?)
}
