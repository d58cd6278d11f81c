//! Feed-forwards: the half of a layer in which every row is by itself.

use cuelight_shaders::elementwise::{Add, GateRows};
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route};
use cuelight_shaders::glu::Glu;

use super::{Builder, WireError};
use crate::graph::ValueId;

/// Experts in layers that have a router, dense in others. x: [rows, hidden_size]; returns the same.
pub fn feed_forward(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
    if builder.weights.has(&format!("blk.{layer}.ffn_gate_inp.weight")) {
        return experts(builder, layer, x);
    }
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

/// The experts that a router chooses for each row, and a shared one for all rows where the file has it.
fn experts(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
    let sizes = builder.expert_sizes()?;
    let logits = builder.linear(layer, &[("ffn_gate_inp", sizes.n_experts)], x)?[0];
    let bias = builder.weights.optional_vector(&format!("blk.{layer}.exp_probs_b.bias"), sizes.n_experts)?;
    let route = Route::new(sizes.scoring, sizes.n_experts, sizes.top_k)?
        .renormalised(sizes.renormalise)
        .scaled(sizes.scale)
        .grouped(sizes.groups)?
        .with_bias(bias)?;
    let routes = builder.graph.push_one(route, &[logits])?;

    let (intermediate, hidden) = (sizes.intermediate_size, builder.h.hidden_size);
    let matrices = [
        expert_matrix(builder, layer, "ffn_gate_exps", intermediate, hidden)?,
        expert_matrix(builder, layer, "ffn_up_exps", intermediate, hidden)?,
        expert_matrix(builder, layer, "ffn_down_exps", hidden, intermediate)?,
    ];
    let experts = Experts::new(matrices, builder.family.activation, sizes.weighting, sizes.top_k)?;
    let routed = builder.graph.push_one(experts, &[x, routes])?;

    let Some(shared) = shared_expert(builder, layer, x)? else { return Ok(routed) };
    Ok(builder.graph.push_one(Add, &[routed, shared])?)
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
