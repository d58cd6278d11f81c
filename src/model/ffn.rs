//! Feed-forwards: the half of a layer that processes each row independently.

use std::sync::Arc;

use cuelight_shaders::activate::Activate;
use cuelight_shaders::add::Add;
use cuelight_shaders::cutoff::Cutoff;
use cuelight_shaders::embed::Embed;
use cuelight_shaders::experts::{ExpertMatrix, Experts, Route};
use cuelight_shaders::gate_rows::GateRows;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::lora::Target;

use super::arch::{FeedForward, SharedExpert};
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
            let Some(shared) = shared_expert(builder, layer, sizes.shared_form, normed)? else { return Ok(routed) };
            let sum = builder.graph.push_one(Add, &[routed, shared])?;
            builder.times(if sizes.shared == SharedExpert::Averaged { 0.5 } else { 1.0 }, sum)
        }
        FeedForwardSpec::ExpertsNextToDense(sizes, dense) => {
            ExpertLayer { layer, sizes }.dense_with_experts(builder, *dense, [x, normed])
        }
        FeedForwardSpec::None => Ok(normed),
    }
}

/// The dense feed-forward with the layer's usual tensors.
fn dense_layer(builder: &mut Builder<'_>, layer: usize, sizes: DenseSizes, x: ValueId) -> Result<ValueId, BuildError> {
    dense(builder, layer, ["ffn_gate", "ffn_up", "ffn_down"], sizes, x)
}

/// Gate and up projections, gated activation, down projection, or the same without a gate. Both projections may be in the
/// tensor of the second.
fn dense(
    builder: &mut Builder<'_>,
    layer: usize,
    [gate, up, down]: [&str; 3],
    DenseSizes { intermediate_size, form, cutoff }: DenseSizes,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let hidden = match form {
        FeedForward::Ungated(function) => {
            let projected = builder.linear(layer, &[(up, intermediate_size)], x)?;
            builder.graph.push_one(Activate::new(function), &projected)?
        }
        FeedForward::UngatedXielu => {
            let projected = builder.linear(layer, &[(up, intermediate_size)], x)?;
            builder.graph.push_one(builder.h.xielu[layer], &projected)?
        }
        FeedForward::Gated(function) => {
            let mut halves = gate_and_up(builder, layer, [gate, up], intermediate_size, x)?;
            if let Some(deviations) = cutoff {
                halves[0] = builder.graph.push_one(Cutoff::new(deviations), &[halves[0]])?;
            }
            builder.graph.push_one(Glu::new(function), &halves)?
        }
        FeedForward::GatedBy(function) => {
            let mut halves = gate_and_up(builder, layer, [gate, up], intermediate_size, x)?;
            halves[0] = builder.graph.push_one(Activate::new(function), &[halves[0]])?;
            builder.graph.push_one(Glu::new(Activation::Bilinear), &halves)?
        }
    };
    Ok(builder.linear(layer, &[(down, builder.h.hidden_size)], hidden)?[0])
}

/// The gate and the values that it multiplies. Both projections may be in the tensor of the second.
fn gate_and_up(
    builder: &mut Builder<'_>,
    layer: usize,
    [gate, up]: [&str; 2],
    intermediate_size: usize,
    x: ValueId,
) -> Result<Vec<ValueId>, BuildError> {
    if builder.weights.has(&format!("blk.{layer}.{gate}.weight")) {
        return builder.linear(layer, &[(gate, intermediate_size), (up, intermediate_size)], x);
    }
    builder.linear_parts(layer, (up, &[intermediate_size; 2]), x)
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
        // Files of some families lack the ending.
        let bias = of_experts("exp_probs_b.bias")?.or(of_experts("exp_probs_b")?);
        // The bias of rows of images, which the family does not take.
        builder.weights.ignore(&self.name("exp_probs_b_vl.bias"));
        let scales = self.factors(builder, "ffn_down_exps")?;
        let route = Route::new(sizes.scoring, sizes.n_experts, sizes.top_k)?
            .renormalised(sizes.renormalise)
            .scaled(sizes.scale)
            .grouped(sizes.groups)?
            .with_bias(bias)?
            .with_expert_scales(scales)?;
        let routes = match self.given_experts(builder)? {
            Some(experts) => builder.graph.push_one(route.with_given_experts(), &[logits, experts])?,
            None => builder.graph.push_one(route, &[logits])?,
        };

        let latent = sizes.latent_size.map(|width| (width, self.latent_stem(builder)));
        let x = match &latent {
            Some((width, stem)) => builder.linear(self.layer, &[(&format!("{stem}_down"), *width)], x)?[0],
            None => x,
        };
        let experts = self.op(builder, builder.graph.width(x))?;
        let y = builder.graph.push_one(experts, &[x, routes])?;
        match latent {
            Some(latent) => self.model_rows(builder, latent, y),
            None => Ok(y),
        }
    }

    /// How the names of the projections start that change the width of rows before and after the experts.
    fn latent_stem(self, builder: &Builder<'_>) -> &'static str {
        const OTHER: &str = "ffn_routed";
        if builder.weights.has(&self.name(&format!("{OTHER}_down.weight"))) { OTHER } else { "ffn_latent" }
    }

    /// The experts' output at the width of the model, after a norm where the file has one.
    fn model_rows(
        self,
        builder: &mut Builder<'_>,
        (width, stem): (usize, &str),
        mut y: ValueId,
    ) -> Result<ValueId, BuildError> {
        let norm = self.name(&format!("{stem}_norm.weight"));
        if builder.weights.has(&norm) {
            y = builder.grouped_norm(&norm, width, y)?;
        }
        Ok(builder.linear(self.layer, &[(&format!("{stem}_up"), builder.h.hidden_size)], y)?[0])
    }

    /// The experts of each row, [rows, top_k], in layers whose file says which those of a token are.
    fn given_experts(self, builder: &mut Builder<'_>) -> Result<Option<ValueId>, BuildError> {
        let (n_experts, shape) = (self.sizes.n_experts, [builder.h.vocab_size, self.sizes.top_k]);
        let table = builder.weights.optional_numbers(&self.name("ffn_gate_tid2eid.weight"), shape, n_experts)?;
        table.map(|table| Ok(builder.graph.push_one(Embed::new(table, 1.0), &[])?)).transpose()
    }

    /// The experts themselves, for rows of `width` values.
    fn op(self, builder: &mut Builder<'_>, width: usize) -> Result<Experts, BuildError> {
        let ExpertSizes { intermediate_size: intermediate, weighting, top_k, .. } = *self.sizes;
        let down = self.matrix(builder, "ffn_down_exps", width, intermediate)?;
        let experts = match self.sizes.form {
            FeedForward::Gated(function) => {
                let [gate, up] = self.gate_and_up(builder, intermediate, width)?;
                Experts::new([gate, up, down], function, weighting, top_k)?
            }
            FeedForward::Ungated(function) => {
                let up = self.scaled_matrix(builder, "ffn_up_exps", intermediate, width)?;
                Experts::ungated([up, down], function, weighting, top_k)?
            }
            FeedForward::UngatedXielu | FeedForward::GatedBy(_) => {
                let architecture = builder.family.architecture.to_owned();
                return Err(ModelError::NoExperts { file: builder.weights.file(), architecture }.into());
            }
        };
        let targets = self.adapter_targets(builder, &experts)?;
        Ok(experts.with_adapters(targets))
    }

    /// What of the experts adapters can change. Outputs of down are multiplied by factors of the file together with the weights of
    /// routes, so the changes are divided by them.
    fn adapter_targets(self, builder: &mut Builder<'_>, experts: &Experts) -> Result<Vec<Target>, BuildError> {
        let factors = self.factors(builder, "ffn_down_exps")?;
        let (hidden, intermediate) = (experts.hidden_size(), experts.intermediate_size());
        let stems = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
        let stems = &stems[stems.len() - experts.matrices_of_expert()..];
        let targets = stems.iter().map(|stem| {
            let is_down = *stem == "ffn_down_exps";
            let shape = if is_down { [hidden, intermediate] } else { [intermediate, hidden] };
            let factor = |expert: usize| match &factors {
                Some(factors) if is_down => 1.0 / factors[expert],
                _ => 1.0,
            };
            let tensor = self.name(&format!("{stem}.weight"));
            builder.projections.add_of_experts(&tensor, shape, (0..experts.n_experts()).map(factor))
        });
        let targets: Option<Vec<Target>> = targets.collect();
        Ok(targets.unwrap_or_default())
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
            Some(fused) => {
                let factors = self.factors(builder, "ffn_gate_up_exps")?;
                let [gate, up] = ExpertMatrix::halves(&fused, n_experts, None)?;
                Ok([gate.with_factors(factors.as_deref())?, up.with_factors(factors.as_deref())?])
            }
            None => Ok([
                self.scaled_matrix(builder, "ffn_gate_exps", outputs, columns)?,
                self.scaled_matrix(builder, "ffn_up_exps", outputs, columns)?,
            ]),
        }
    }

    /// [`Self::matrix`] with the factors of the file. Those of down are part of the routes.
    fn scaled_matrix(
        self,
        builder: &mut Builder<'_>,
        stem: &str,
        outputs: usize,
        columns: usize,
    ) -> Result<ExpertMatrix, BuildError> {
        let factors = self.factors(builder, stem)?;
        Ok(self.matrix(builder, stem, outputs, columns)?.with_factors(factors.as_deref())?)
    }

    /// The factor of each expert's matrix, `[n_experts]`, where the file has some. Formats whose scales have a small range need
    /// them. The scales of inputs in training are not needed.
    fn factors(self, builder: &mut Builder<'_>, stem: &str) -> Result<Option<Arc<[f32]>>, BuildError> {
        builder.weights.ignore(&self.name(&format!("{stem}.input_scale")));
        Ok(builder.weights.optional_vector(&self.name(&format!("{stem}.scale")), self.sizes.n_experts)?)
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
fn shared_expert(
    builder: &mut Builder<'_>,
    layer: usize,
    form: FeedForward,
    x: ValueId,
) -> Result<Option<ValueId>, BuildError> {
    let name = |stem: &str| format!("blk.{layer}.{stem}.weight");
    let Some(rows) = builder.weights.rows(&name("ffn_up_shexp")) else { return Ok(None) };
    let stems = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
    let holds_gate = matches!(form, FeedForward::Gated(_)) && !builder.weights.has(&name("ffn_gate_shexp"));
    let intermediate_size = if holds_gate { rows / 2 } else { rows };
    let shared = dense(builder, layer, stems, DenseSizes { intermediate_size, form, cutoff: None }, x)?;
    if !builder.weights.has(&name("ffn_gate_inp_shexp")) {
        return Ok(Some(shared));
    }
    let gate = builder.linear(layer, &[("ffn_gate_inp_shexp", 1)], x)?[0];
    Ok(Some(builder.graph.push_one(GateRows::new(Activation::Sigmoid), &[shared, gate])?))
}
