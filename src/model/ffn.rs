//! Feed-forwards: the half of a layer in which every row is by itself.

use cuelight_shaders::elementwise::{Add, GateRows};
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route};
use cuelight_shaders::glu::Glu;

use super::arch::ExpertStance;
use super::{Builder, WireError};
use crate::graph::ValueId;

/// Experts in layers that have a router, dense in others.
///
/// `x` is the residual stream and `normed` the same after the layer's norm, both [rows, hidden_size]; returns as much.
pub fn feed_forward(
    builder: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    normed: ValueId,
) -> Result<ValueId, WireError> {
    if !builder.weights.has(&format!("blk.{layer}.ffn_gate_inp.weight")) {
        return dense_layer(builder, layer, normed);
    }
    match builder.expert_sizes()?.stance {
        ExpertStance::Instead => {
            let routed = experts(builder, layer, normed, normed)?;
            let Some(shared) = shared_expert(builder, layer, normed)? else { return Ok(routed) };
            Ok(builder.graph.push_one(Add, &[routed, shared])?)
        }
        ExpertStance::Beside => dense_beside_experts(builder, layer, x, normed),
    }
}

/// The dense feed-forward of a layer.
fn dense_layer(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
    let intermediate_size = builder.h.intermediate_size;
    dense(builder, layer, ["ffn_gate", "ffn_up", "ffn_down"], intermediate_size, x)
}

/// Gate and up, gated activation, down.
fn dense(
    builder: &mut Builder<'_>,
    layer: usize,
    [gate, up, down]: [&str; 3],
    intermediate_size: usize,
    x: ValueId,
) -> Result<ValueId, WireError> {
    let halves = builder.linear(layer, &[(gate, intermediate_size), (up, intermediate_size)], x)?;
    let gated = builder.graph.push_one(Glu::new(builder.family.activation), &halves)?;
    Ok(builder.linear(layer, &[(down, builder.h.hidden_size)], gated)?[0])
}

/// A dense feed-forward and experts, each with norms of its own.
fn dense_beside_experts(
    builder: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    normed: ValueId,
) -> Result<ValueId, WireError> {
    let name = |stem: &str| format!("blk.{layer}.{stem}");
    let hidden_size = builder.h.hidden_size;
    let dense = dense_layer(builder, layer, normed)?;
    let dense = builder.grouped_norm(&name("post_ffw_norm_1.weight"), hidden_size, dense)?;

    // The router's norm has one scale for each column, and one for all: that of a row whose length is 1.
    let scales = builder.weights.vector(&name("ffn_gate_inp.scale"), hidden_size)?;
    let of_all = 1.0 / (hidden_size as f32).sqrt();
    let for_router = builder.norm_by(scales.iter().map(|scale| scale * of_all).collect(), x)?;
    let for_experts = builder.grouped_norm(&name("pre_ffw_norm_2.weight"), hidden_size, x)?;
    let routed = experts(builder, layer, for_router, for_experts)?;
    let routed = builder.grouped_norm(&name("post_ffw_norm_2.weight"), hidden_size, routed)?;
    Ok(builder.graph.push_one(Add, &[dense, routed])?)
}

/// What the experts make of `x` that a router chooses by `router_input`.
fn experts(builder: &mut Builder<'_>, layer: usize, router_input: ValueId, x: ValueId) -> Result<ValueId, WireError> {
    let sizes = builder.expert_sizes()?;
    let logits = builder.linear(layer, &[("ffn_gate_inp", sizes.n_experts)], router_input)?[0];
    let mut of_experts = |stem: &str| builder.weights.optional_vector(&format!("blk.{layer}.{stem}"), sizes.n_experts);
    let (bias, scales) = (of_experts("exp_probs_b.bias")?, of_experts("ffn_down_exps.scale")?);
    let route = Route::new(sizes.scoring, sizes.n_experts, sizes.top_k)?
        .renormalised(sizes.renormalise)
        .scaled(sizes.scale)
        .grouped(sizes.groups)?
        .with_bias(bias)?
        .with_expert_scales(scales)?;
    let routes = builder.graph.push_one(route, &[logits])?;

    let (intermediate, hidden) = (sizes.intermediate_size, builder.h.hidden_size);
    let [gate, up] = gate_and_up(builder, layer, intermediate, hidden)?;
    let down = expert_matrix(builder, layer, "ffn_down_exps", hidden, intermediate)?;
    let experts = Experts::new([gate, up, down], builder.family.activation, sizes.weighting, sizes.top_k)?;
    Ok(builder.graph.push_one(experts, &[x, routes])?)
}

/// The first two matrices of every expert, which a file may have in one tensor.
fn gate_and_up(
    builder: &mut Builder<'_>,
    layer: usize,
    outputs: usize,
    columns: usize,
) -> Result<[ExpertMatrix; 2], WireError> {
    let n_experts = builder.expert_sizes()?.n_experts;
    let fused = builder.weights.optional_matrix(
        &format!("blk.{layer}.ffn_gate_up_exps.weight"),
        n_experts * 2 * outputs,
        columns,
    )?;
    match fused {
        Some(fused) => Ok(ExpertMatrix::halves(&fused, n_experts, None)?),
        None => Ok([
            expert_matrix(builder, layer, "ffn_gate_exps", outputs, columns)?,
            expert_matrix(builder, layer, "ffn_up_exps", outputs, columns)?,
        ]),
    }
}

/// [n_experts, outputs, columns], with its bias where the file has one.
fn expert_matrix(
    builder: &mut Builder<'_>,
    layer: usize,
    stem: &str,
    outputs: usize,
    columns: usize,
) -> Result<ExpertMatrix, WireError> {
    let n_experts = builder.expert_sizes()?.n_experts;
    let name = format!("blk.{layer}.{stem}");
    let tensor = builder.weights.matrix(&format!("{name}.weight"), n_experts * outputs, columns)?;
    let bias = builder.weights.optional_expert_biases(&format!("{name}.bias"), n_experts, outputs)?;
    Ok(ExpertMatrix::new(tensor, n_experts, bias)?)
}

/// The expert that every row uses, if there is one; weighted where it has a gate.
fn shared_expert(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<Option<ValueId>, WireError> {
    let name = |stem: &str| format!("blk.{layer}.{stem}.weight");
    let Some(intermediate_size) = builder.weights.rows(&name("ffn_gate_shexp")) else { return Ok(None) };
    let stems = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
    let shared = dense(builder, layer, stems, intermediate_size, x)?;
    if !builder.weights.has(&name("ffn_gate_inp_shexp")) {
        return Ok(Some(shared));
    }
    let gate = builder.linear(layer, &[("ffn_gate_inp_shexp", 1)], x)?[0];
    Ok(Some(builder.graph.push_one(GateRows, &[shared, gate])?))
}
