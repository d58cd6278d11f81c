//! The tensors of a shape, with the names that GGUF files of all families use.

use std::f32::consts::PI;

use super::models::{Biases, DeltaHeads, ExpertShape, RopeStretch, Shape};
use crate::model::arch::{FAMILIES, Family, Gate, Norms, QkNorm};
use crate::quantization_recipe::Role;

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The name of the tensor.
    pub name: String,
    /// Output dimension; 1 for a vector.
    pub rows: usize,
    /// Input dimension.
    pub columns: usize,
    /// Number of matrices of `rows` rows, one per expert; 1 without experts.
    pub experts: usize,
    /// The layer of the tensor; 0 outside the layers.
    pub layer: usize,
    /// The kind of its values.
    pub content: Content,
}

/// The kind of values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Random weights in the format of the role.
    Weights(Role),
    /// The weights of a norm, near 1.
    Norm,
    /// A bias, near 0.
    Bias,
    /// The rate at which recurrent state decays, near -1.
    Decay,
    /// A router in float32, which selects some experts far more often than others.
    Router,
    /// These values.
    Values(Vec<f32>),
}

impl Tensor {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows * self.columns * self.experts
    }

    /// Whether the tensor has no values, which is never the case in a model.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the tensor is learnt. Tables computed from the configuration do not count as parameters.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        !matches!(self.content, Content::Values(_))
    }
}

/// All tensors of a shape: first those outside the layers, then layer by layer.
#[must_use]
pub fn tensors(shape: &Shape) -> Vec<Tensor> {
    let mut list = List { layer: 0, tensors: Vec::new() };
    let embedding = if shape.tied { Role::Head } else { Role::Embedding };
    list.matrix("token_embd", shape.vocab_size, shape.hidden_size, embedding);
    list.vector("output_norm.weight", shape.hidden_size, Content::Norm);
    if !shape.tied {
        list.matrix("output", shape.vocab_size, shape.hidden_size, Role::Head);
    }
    if let RopeStretch::Llama3 { factor } = shape.rope_stretch {
        let factors = llama_3_factors(shape.rope_base, shape.head_dim, factor);
        list.vector("rope_freqs.weight", factors.len(), Content::Values(factors));
    }
    for layer in 0..shape.n_layers {
        list.layer = layer;
        list.layer(shape);
    }
    list.tensors
}

/// Number of learnt weights.
#[must_use]
pub fn parameters(shape: &Shape) -> u64 {
    tensors(shape).iter().filter(|tensor| tensor.is_learnt()).map(|tensor| tensor.len() as u64).sum()
}

/// A list of tensors that is being built.
struct List {
    layer: usize,
    tensors: Vec<Tensor>,
}

impl List {
    fn matrix(&mut self, stem: &str, rows: usize, columns: usize, role: Role) {
        let (name, layer) = (format!("{stem}.weight"), self.layer);
        self.tensors.push(Tensor { name, rows, columns, experts: 1, layer, content: Content::Weights(role) });
    }

    fn experts(&mut self, stem: &str, experts: usize, [rows, columns]: [usize; 2], role: Role) {
        let (name, layer) = (format!("{stem}.weight"), self.layer);
        self.tensors.push(Tensor { name, rows, columns, experts, layer, content: Content::Weights(role) });
    }

    fn vector(&mut self, name: &str, columns: usize, content: Content) {
        let (name, layer) = (name.to_owned(), self.layer);
        self.tensors.push(Tensor { name, rows: 1, columns, experts: 1, layer, content });
    }

    fn layer(&mut self, shape: &Shape) {
        let (hidden, intermediate) = (shape.hidden_size, shape.intermediate_size);
        let family = FAMILIES.iter().find(|family| family.architecture == shape.architecture);
        let norms_after = family.is_some_and(|family| family.norms == Norms::BeforeAndAfter);
        let layer = self.layer;
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let norm = |stem: &str| format!("blk.{layer}.{stem}_norm.weight");

        self.vector(&norm("attn"), hidden, Content::Norm);
        match shape.delta.filter(|_| DeltaHeads::has_layer(layer)) {
            Some(heads) => self.delta(&name, heads, hidden),
            None => self.attention(shape, family),
        }
        if norms_after {
            self.vector(&norm("post_attention"), hidden, Content::Norm);
        }
        let named_after = family.is_some_and(|family| family.norms == Norms::BeforeButNamedAfter);
        self.vector(&norm(if named_after { "post_attention" } else { "ffn" }), hidden, Content::Norm);
        match shape.experts {
            None => self.dense(&name, ["ffn_gate", "ffn_up", "ffn_down"], [intermediate, hidden]),
            Some(experts) => {
                self.mixture_of_experts(&name, experts, hidden);
                if shape.biases == Biases::EveryProduct {
                    self.expert_biases(&name, experts, hidden);
                }
            }
        }
        if norms_after {
            self.vector(&norm("post_ffw"), hidden, Content::Norm);
        }
    }
}

impl List {
    /// Projections, norms and biases of attention.
    fn attention(&mut self, shape: &Shape, family: Option<&&Family>) {
        let hidden = shape.hidden_size;
        let (queries, keys) = (shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
        let is_gated = family.is_some_and(|family| family.attention.gate == Gate::InQuery);
        let projected = if is_gated { 2 * queries } else { queries };
        let norms_heads =
            family.is_some_and(|family| matches!(family.attention.qk_norm, QkNorm::Always(_) | QkNorm::WhereStored(_)));
        let layer = self.layer;
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let norm = |stem: &str| format!("blk.{layer}.{stem}_norm.weight");
        for (stem, rows, role) in
            [("attn_q", projected, Role::Other), ("attn_k", keys, Role::Other), ("attn_v", keys, Role::Values)]
        {
            self.matrix(&name(stem), rows, hidden, role);
            if shape.biases != Biases::Never {
                self.vector(&format!("{}.bias", name(stem)), rows, Content::Bias);
            }
        }
        if norms_heads {
            self.vector(&norm("attn_q"), shape.head_dim, Content::Norm);
            self.vector(&norm("attn_k"), shape.head_dim, Content::Norm);
        }
        self.matrix(&name("attn_output"), hidden, queries, Role::AttentionOutput);
        if shape.biases == Biases::EveryProduct {
            self.vector(&name("attn_output.bias"), hidden, Content::Bias);
        }
        if shape.sinks {
            self.vector(&name("attn_sinks.weight"), shape.n_heads, Content::Bias);
        }
    }

    /// Projections, convolution and norm of the gated delta rule.
    fn delta(&mut self, name: &impl Fn(&str) -> String, heads: DeltaHeads, hidden: usize) {
        const DIM: usize = DeltaHeads::HEAD_DIM;
        let (channels, inner) = ((2 * heads.keys + heads.values) * DIM, heads.values * DIM);
        self.matrix(&name("attn_qkv"), channels, hidden, Role::QueryKeyValue);
        self.matrix(&name("attn_gate"), inner, hidden, Role::Other);
        self.matrix(&name("ssm_beta"), heads.values, hidden, Role::Other);
        self.matrix(&name("ssm_alpha"), heads.values, hidden, Role::Other);
        let (conv, layer) = (format!("{}.weight", name("ssm_conv1d")), self.layer);
        let (columns, content) = (DeltaHeads::CONV_WIDTH, Content::Bias);
        self.tensors.push(Tensor { name: conv, rows: channels, columns, experts: 1, layer, content });
        self.vector(&name("ssm_a"), heads.values, Content::Decay);
        self.vector(&name("ssm_dt.bias"), heads.values, Content::Bias);
        self.vector(&name("ssm_norm.weight"), DIM, Content::Norm);
        self.matrix(&name("ssm_out"), hidden, inner, Role::AttentionOutput);
    }

    fn dense(&mut self, name: &impl Fn(&str) -> String, [gate, up, down]: [&str; 3], [inner, hidden]: [usize; 2]) {
        self.matrix(&name(gate), inner, hidden, Role::Other);
        self.matrix(&name(up), inner, hidden, Role::Other);
        self.matrix(&name(down), hidden, inner, Role::Down);
    }

    fn expert_biases(&mut self, name: &impl Fn(&str) -> String, experts: ExpertShape, hidden: usize) {
        let ExpertShape { count, intermediate_size, .. } = experts;
        self.vector(&name("ffn_gate_inp.bias"), count, Content::Bias);
        for (stem, columns) in
            [("ffn_gate_exps", intermediate_size), ("ffn_up_exps", intermediate_size), ("ffn_down_exps", hidden)]
        {
            let (name, layer, content) = (format!("{}.bias", name(stem)), self.layer, Content::Bias);
            self.tensors.push(Tensor { name, rows: count, columns, experts: 1, layer, content });
        }
    }

    fn mixture_of_experts(&mut self, name: &impl Fn(&str) -> String, experts: ExpertShape, hidden: usize) {
        let ExpertShape { count, intermediate_size, shared_size, .. } = experts;
        let (router, layer) = (format!("{}.weight", name("ffn_gate_inp")), self.layer);
        let content = Content::Router;
        self.tensors.push(Tensor { name: router, rows: count, columns: hidden, experts: 1, layer, content });
        self.experts(&name("ffn_gate_exps"), count, [intermediate_size, hidden], Role::Other);
        self.experts(&name("ffn_up_exps"), count, [intermediate_size, hidden], Role::Other);
        self.experts(&name("ffn_down_exps"), count, [hidden, intermediate_size], Role::Down);
        if shared_size > 0 {
            self.vector(&format!("{}.weight", name("ffn_gate_inp_shexp")), hidden, Content::Bias);
            self.dense(name, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], [shared_size, hidden]);
        }
    }
}

/// The divisors of Llama 3's rotary frequencies.
///
/// A frequency with at least four periods within the original context of 8192 tokens is unchanged. A frequency with less than
/// one period is divided by `factor`. Between them the divisor is interpolated. Source: Llama 3.1's reference code.
fn llama_3_factors(base: f32, rotary_dim: usize, factor: f32) -> Vec<f32> {
    const ORIGINAL_CONTEXT: f32 = 8192.0;
    const UNCHANGED_FROM_PERIODS: f32 = 4.0;
    const DIVIDED_UP_TO_PERIODS: f32 = 1.0;
    let factor_of = |pair: usize| {
        let frequency = base.powf(-(2.0 * pair as f32) / rotary_dim as f32);
        let periods = ORIGINAL_CONTEXT * frequency / (2.0 * PI);
        let unchanged =
            ((periods - DIVIDED_UP_TO_PERIODS) / (UNCHANGED_FROM_PERIODS - DIVIDED_UP_TO_PERIODS)).clamp(0.0, 1.0);
        1.0 / ((1.0 - unchanged) / factor + unchanged)
    };
    (0..rotary_dim / 2).map(factor_of).collect()
}
