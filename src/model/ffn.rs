//! Feed-forwards: the half of a layer that processes each row independently.

use cuelight_shaders::elementwise::{Add, GateRows};
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route};
use cuelight_shaders::glu::Glu;

use super::arch::ExpertPlacement;
use super::builder::{BuildError, Builder};
use crate::graph::ValueId;

/// Appends a layer's feed-forward: experts where the file has a router, dense otherwise.
///
/// `x` is the residual stream and `normed` the residual stream after the layer's norm; both and the result are
/// [rows, hidden_size].
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn feed_forward(
    builder: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    normed: ValueId,
) -> Result<ValueId, BuildError> {
    if !builder.weights.has(&format!("blk.{layer}.ffn_gate_inp.weight")) {
        return dense_layer(builder, layer, normed);
    }
    match builder.expert_sizes()?.placement {
        ExpertPlacement::Replace => {
            let routed = experts(builder, layer, normed, normed)?;
            let Some(shared) = shared_expert(builder, layer, normed)? else { return Ok(routed) };
            Ok(builder.graph.push_one(Add, &[routed, shared])?)
        }
        ExpertPlacement::Parallel => dense_with_experts(builder, layer, x, normed),
    }
}

/// The dense feed-forward with the layer's usual tensors.
fn dense_layer(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let intermediate_size = builder.h.intermediate_size;
    dense(builder, layer, ["ffn_gate", "ffn_up", "ffn_down"], intermediate_size, x)
}

/// Gate and up projections, gated activation, down projection.
fn dense(
    builder: &mut Builder<'_>,
    layer: usize,
    [gate, up, down]: [&str; 3],
    intermediate_size: usize,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let halves = builder.linear(layer, &[(gate, intermediate_size), (up, intermediate_size)], x)?;
    let gated = builder.graph.push_one(Glu::new(builder.family.activation), &halves)?;
    Ok(builder.linear(layer, &[(down, builder.h.hidden_size)], gated)?[0])
}

/// A dense feed-forward and experts in parallel, each with its own norms.
fn dense_with_experts(
    builder: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    normed: ValueId,
) -> Result<ValueId, BuildError> {
    let name = |stem: &str| format!("blk.{layer}.{stem}");
    let hidden_size = builder.h.hidden_size;
    let dense = dense_layer(builder, layer, normed)?;
    let dense = builder.grouped_norm(&name("post_ffw_norm_1.weight"), hidden_size, dense)?;

    // The router's norm scales each column, and the whole row to length 1 instead of to mean square 1.
    let scales = builder.weights.vector(&name("ffn_gate_inp.scale"), hidden_size)?;
    let unit_length = 1.0 / (hidden_size as f32).sqrt();
    let for_router = builder.norm_by(scales.iter().map(|scale| scale * unit_length).collect(), x)?;
    let for_experts = builder.grouped_norm(&name("pre_ffw_norm_2.weight"), hidden_size, x)?;
    let routed = experts(builder, layer, for_router, for_experts)?;
    let routed = builder.grouped_norm(&name("post_ffw_norm_2.weight"), hidden_size, routed)?;
    Ok(builder.graph.push_one(Add, &[dense, routed])?)
}

/// Routed experts on `x`; the router chooses them by `router_input`.
fn experts(builder: &mut Builder<'_>, layer: usize, router_input: ValueId, x: ValueId) -> Result<ValueId, BuildError> {
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

/// The gate and up matrices of every expert; some files store both in one tensor.
fn gate_and_up(
    builder: &mut Builder<'_>,
    layer: usize,
    outputs: usize,
    columns: usize,
) -> Result<[ExpertMatrix; 2], BuildError> {
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

/// One matrix per expert, [n_experts, outputs, columns], with its bias where the file has one.
fn expert_matrix(
    builder: &mut Builder<'_>,
    layer: usize,
    stem: &str,
    outputs: usize,
    columns: usize,
) -> Result<ExpertMatrix, BuildError> {
    let n_experts = builder.expert_sizes()?.n_experts;
    let name = format!("blk.{layer}.{stem}");
    let tensor = builder.weights.matrix(&format!("{name}.weight"), n_experts * outputs, columns)?;
    let bias = builder.weights.optional_expert_biases(&format!("{name}.bias"), n_experts, outputs)?;
    Ok(ExpertMatrix::new(tensor, n_experts, bias)?)
}

/// The shared expert that every row uses, if the layer has one; multiplied by its gate where the file has one.
fn shared_expert(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<Option<ValueId>, BuildError> {
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
