//! The gated delta rule as a mixer.

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::gated_delta::GatedDelta;
use cuelight_shaders::glu::Glu;
use cuelight_shaders::heads::SplitHeads;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::DeltaLayer;

/// Appends a mixer with the gated delta rule: project, convolve, apply the rule, norm each head, gate, project back.
///
/// Source: Yang et al. 2024, "Gated Delta Networks".
pub(super) fn gated_delta(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &DeltaLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let shape = sizes.shape;
    let [conv_state, state] = sizes.state_parts(layer);
    let [mixed, gate, beta, decay] = project(builder, layer, sizes, x)?;
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");

    let weight = builder.weights.matrix(&name("ssm_conv1d.weight"), shape.mixed_width(), sizes.conv_width)?;
    let conv = CausalConv::new(&weight.to_f32(), sizes.conv_width, None, conv_state)?.with_silu();
    let mixed = builder.graph.push_one(conv, &[mixed])?;

    let a = builder.weights.vector(&name("ssm_a"), shape.value_heads)?;
    let dt_bias = builder.weights.vector(&name("ssm_dt.bias"), shape.value_heads)?;
    let rule = GatedDelta::new(shape, a, dt_bias, state)?;
    let output = builder.graph.push_one(rule, &[mixed, decay, beta])?;

    let normed = builder.grouped_norm(&name("ssm_norm.weight"), shape.value_dim, output)?;
    let gated = builder.graph.push_one(Glu::new(sizes.gate), &[gate, normed])?;
    Ok(builder.linear(layer, &[("ssm_out", builder.h.hidden_size)], gated)?[0])
}

/// Queries, keys and values one after another; the gate of the output; the inputs of beta and of the decay. Some files hold
/// the last two in one tensor, for one key head after the other.
fn project(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &DeltaLayer,
    x: ValueId,
) -> Result<[ValueId; 4], BuildError> {
    let (shape, heads) = (sizes.shape, sizes.shape.value_heads);
    let [mixed, gate] = [("attn_qkv", shape.mixed_width()), ("attn_gate", shape.value_width())];
    if !builder.weights.has(&format!("blk.{layer}.ssm_ba.weight")) {
        let projected = builder.linear(layer, &[mixed, gate, ("ssm_beta", heads), ("ssm_alpha", heads)], x)?;
        return Ok([projected[0], projected[1], projected[2], projected[3]]);
    }
    let projected = builder.linear(layer, &[mixed, gate, ("ssm_ba", 2 * heads)], x)?;
    let of_key_head = heads / shape.key_heads;
    let split = SplitHeads { first: of_key_head, second: of_key_head };
    let parts = builder.graph.push(split, &[projected[2]])?;
    Ok([projected[0], projected[1], parts[0], parts[1]])
}
