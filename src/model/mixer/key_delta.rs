//! The gated delta rule with a decay for each key as a mixer.

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::gated_delta::GatedDelta;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::heads::JoinHeads;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::DeltaLayer;

/// Appends a mixer with the delta rule: project, convolve, apply the rule, norm each head, gate, project back. Decays and gates
/// come from projections through few values.
///
/// Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture".
pub(super) fn key_delta(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &DeltaLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let shape = sizes.shape;
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    let [_, state] = sizes.state_parts(layer);
    let mixed = convolved(builder, layer, sizes, x)?;
    let (dim, width, heads) = (shape.key_dim, shape.value_width(), shape.value_heads);
    let projected = builder.linear(layer, &[("ssm_f_a", dim), ("ssm_g_a", dim), ("ssm_beta", heads)], x)?;
    let decay = builder.linear(layer, &[("ssm_f_b", width)], projected[0])?[0];
    let gate = builder.linear(layer, &[("ssm_g_b", width)], projected[1])?[0];

    let a = builder.weights.matrix(&name("ssm_a"), heads, 1)?.to_f32();
    let dt_bias = builder.weights.vector(&name("ssm_dt.bias"), width)?;
    let rule = GatedDelta::new(shape, a.into(), dt_bias, state)?;
    let output = builder.graph.push_one(rule, &[mixed, decay, projected[2]])?;

    let normed = builder.grouped_norm(&name("ssm_norm.weight"), shape.value_dim, output)?;
    let gated = builder.graph.push_one(Glu::new(Activation::Sigmoid), &[gate, normed])?;
    Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], gated)?[0])
}

/// Queries, keys and values one after another, convolved.
fn convolved(builder: &mut Builder<'_>, layer: usize, sizes: &DeltaLayer, x: ValueId) -> Result<ValueId, BuildError> {
    let (width, [conv_state, _]) = (sizes.shape.value_width(), sizes.state_parts(layer));
    let projected = builder.linear(layer, &[("attn_q", width), ("attn_k", width), ("attn_v", width)], x)?;
    let join = |first: usize| JoinHeads { first, second: width };
    let joined = builder.graph.push_one(join(width), &[projected[0], projected[1]])?;
    let mixed = builder.graph.push_one(join(2 * width), &[joined, projected[2]])?;
    let mut weights = Vec::new();
    for kind in ["q", "k", "v"] {
        let tensor = format!("blk.{layer}.ssm_conv1d_{kind}.weight");
        weights.extend(builder.weights.matrix(&tensor, width, sizes.conv_width)?.to_f32());
    }
    let conv = CausalConv::new(&weights, sizes.conv_width, None, conv_state)?.with_silu();
    Ok(builder.graph.push_one(conv, &[mixed])?)
}
