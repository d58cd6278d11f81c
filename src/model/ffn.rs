//! Feed-forwards: the half of a layer that processes each row independently.

use cuelight_shaders::elementwise::{Activate, Add, GateRows, Pointwise};
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route};
use cuelight_shaders::glu::{Activation, Glu};

use super::arch::FeedForward;
use super::builder::{BuildError, Builder};
use super::error::ModelError;
use super::layer::{DenseSizes, ExpertSizes, FeedForwardSpec};
use crate::graph::ValueId;

/// Appends a layer's feed-forward.
///
/// `x` is the residual stream and `normed` the residual stream after the layer's norm; both and the result are
/// [rows, hidden_size].
///
/// # Errors
/// [`BuildError`] when a tensor is missing or has the wrong shape.
pub fn feed_forward(
    builder: &mut Builder<'_>,
    layer: usize,
    spec: &FeedForwardSpec,
    [x, normed]: [ValueId; 2],
) -> Result<ValueId, BuildError> {
    match spec {
        FeedForwardSpec::Dense(sizes) => dense_layer(builder, layer, *sizes, normed),
        FeedForwardSpec::Experts(sizes) => {
            let routed = ExpertLayer { layer, sizes }.experts(builder, normed, normed)?;
            let Some(shared) = shared_expert(builder, layer, normed)? else { return Ok(routed) };
            Ok(builder.graph.push_one(Add, &[routed, shared])?)
        }
        FeedForwardSpec::ExpertsNextToDense(sizes, dense) => {
            ExpertLayer { layer, sizes }.dense_with_experts(builder, *dense, [x, normed])
        }
        FeedForwardSpec::None => Ok(normed),
    }
}

/// The dense feed-forward with the layer's usual tensors.
fn dense_layer(
    builder: &mut Builder<'_>,
    layer: usize,
    DenseSizes { intermediate_size, form }: DenseSizes,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    match form {
        FeedForward::Gated(_) => dense(builder, layer, ["ffn_gate", "ffn_up", "ffn_down"], intermediate_size, x),
        FeedForward::Ungated(function) => ungated(builder, layer, function, intermediate_size, x),
    }
}

/// Gate and up projections, gated activation, down projection. Both projections may be in the tensor of the second.
fn dense(
    builder: &mut Builder<'_>,
    layer: usize,
    [gate, up, down]: [&str; 3],
    intermediate_size: usize,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let halves = if builder.weights.has(&format!("blk.{layer}.{gate}.weight")) {
        builder.linear(layer, &[(gate, intermediate_size), (up, intermediate_size)], x)?
    } else {
        builder.linear_parts(layer, (up, &[intermediate_size; 2]), x)?
    };
    let activation = gate_activation(builder)?;
    let gated = builder.graph.push_one(Glu::new(activation), &halves)?;
    Ok(builder.linear(layer, &[(down, builder.h.hidden_size)], gated)?[0])
}

/// Up projection, activation, down projection.
fn ungated(
    builder: &mut Builder<'_>,
    layer: usize,
    function: Pointwise,
    intermediate_size: usize,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let up = builder.linear(layer, &[("ffn_up", intermediate_size)], x)?;
    let activated = builder.graph.push_one(Activate::new(function), &up)?;
    Ok(builder.linear(layer, &[("ffn_down", builder.h.hidden_size)], activated)?[0])
}

/// The family's activation, for experts, which always have gates.
fn gate_activation(builder: &Builder<'_>) -> Result<Activation, BuildError> {
    match builder.family.feed_forward {
        FeedForward::Gated(activation) => Ok(activation),
        FeedForward::Ungated(_) => {
            let architecture = builder.family.architecture.to_owned();
            Err(ModelError::NoExperts { file: builder.weights.file(), architecture }.into())
        }
    }
}

/// A layer with experts.
#[derive(Clone, Copy)]
struct ExpertLayer<'a> {
    layer: usize,
    sizes: &'a ExpertSizes,
}

impl ExpertLayer<'_> {
    /// The name of a tensor of the layer.
    fn name(self, tensor: &str) -> String {
        format!("blk.{}.{tensor}", self.layer)
    }

    /// A dense feed-forward and experts in parallel, each with its own norms.
    fn dense_with_experts(
        self,
        builder: &mut Builder<'_>,
        sizes: DenseSizes,
        [x, normed]: [ValueId; 2],
    ) -> Result<ValueId, BuildError> {
        let name = |stem: &str| self.name(stem);
        let hidden_size = builder.h.hidden_size;
        let dense = dense_layer(builder, self.layer, sizes, normed)?;
        let dense = builder.grouped_norm(&name("post_ffw_norm_1.weight"), hidden_size, dense)?;

        // The router's norm scales each column, and the whole row to length 1 instead of to mean square 1.
        let scales = builder.weights.vector(&name("ffn_gate_inp.scale"), hidden_size)?;
        let unit_length = 1.0 / (hidden_size as f32).sqrt();
        let for_router = builder.norm_by(scales.iter().map(|scale| scale * unit_length).collect(), x)?;
        let for_experts = builder.grouped_norm(&name("pre_ffw_norm_2.weight"), hidden_size, x)?;
        let routed = self.experts(builder, for_router, for_experts)?;
        let routed = builder.grouped_norm(&name("post_ffw_norm_2.weight"), hidden_size, routed)?;
        Ok(builder.graph.push_one(Add, &[dense, routed])?)
    }

    /// Routed experts on `x`; the router chooses them by `router_input`.
    fn experts(self, builder: &mut Builder<'_>, router_input: ValueId, x: ValueId) -> Result<ValueId, BuildError> {
        let sizes = self.sizes;
        let logits = builder.linear(self.layer, &[("ffn_gate_inp", sizes.n_experts)], router_input)?[0];
        let mut of_experts = |stem: &str| builder.weights.optional_vector(&self.name(stem), sizes.n_experts);
        let (bias, scales) = (of_experts("exp_probs_b.bias")?, of_experts("ffn_down_exps.scale")?);
        let route = Route::new(sizes.scoring, sizes.n_experts, sizes.top_k)?
            .renormalised(sizes.renormalise)
            .scaled(sizes.scale)
            .grouped(sizes.groups)?
            .with_bias(bias)?
            .with_expert_scales(scales)?;
        let routes = builder.graph.push_one(route, &[logits])?;

        let (intermediate, hidden) = (sizes.intermediate_size, builder.h.hidden_size);
        let [gate, up] = self.gate_and_up(builder, intermediate, hidden)?;
        let down = self.matrix(builder, "ffn_down_exps", hidden, intermediate)?;
        let activation = gate_activation(builder)?;
        let experts = Experts::new([gate, up, down], activation, sizes.weighting, sizes.top_k)?;
        Ok(builder.graph.push_one(experts, &[x, routes])?)
    }

    /// The gate and up matrices of every expert; some files store both in one tensor.
    fn gate_and_up(
        self,
        builder: &mut Builder<'_>,
        outputs: usize,
        columns: usize,
    ) -> Result<[ExpertMatrix; 2], BuildError> {
        let n_experts = self.sizes.n_experts;
        let fused =
            builder.weights.optional_matrix(&self.name("ffn_gate_up_exps.weight"), n_experts * 2 * outputs, columns)?;
        match fused {
            Some(fused) => Ok(ExpertMatrix::halves(&fused, n_experts, None)?),
            None => Ok([
                self.matrix(builder, "ffn_gate_exps", outputs, columns)?,
                self.matrix(builder, "ffn_up_exps", outputs, columns)?,
            ]),
        }
    }

    /// One matrix per expert, [n_experts, outputs, columns], with its bias where the file has one.
    fn matrix(
        self,
        builder: &mut Builder<'_>,
        stem: &str,
        outputs: usize,
        columns: usize,
    ) -> Result<ExpertMatrix, BuildError> {
        let n_experts = self.sizes.n_experts;
        let name = self.name(stem);
        let tensor = builder.weights.matrix(&format!("{name}.weight"), n_experts * outputs, columns)?;
        let bias = builder.weights.optional_expert_biases(&format!("{name}.bias"), n_experts, outputs)?;
        Ok(ExpertMatrix::new(tensor, n_experts, bias)?)
    }
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
