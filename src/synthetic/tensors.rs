//! A shape's tensors, by the names that GGUF files of every family share.

use std::f32::consts::PI;

use super::models::{RopeStretch, Shape};
use crate::model::arch::{FAMILIES, Norms, QkNorm};

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Output dimension; 1 for a vector.
    pub rows: usize,
    /// Input dimension.
    pub columns: usize,
    /// The layer that it belongs to; 0 outside of layers.
    pub layer: usize,
    /// What is in it.
    pub content: Content,
}

/// What is in a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Random weights, in the format that the role gets.
    Weights(Role),
    /// A norm's weights, near 1.
    Norm,
    /// A bias, near 0.
    Bias,
    /// Just these values.
    Values(Vec<f32>),
}

/// What a matrix is for, as far as mixtures care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The embedding.
    Embedding,
    /// The head, or the embedding that is also the head.
    Head,
    /// Attention's values.
    Values,
    /// Attention's output.
    AttentionOutput,
    /// The feed-forward's way back.
    Down,
    /// Anything else.
    Other,
}

impl Tensor {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether it has no values, which no tensor of a model has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is learnt: tables that follow from the configuration do not count as parameters.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        !matches!(self.content, Content::Values(_))
    }
}

/// All tensors of a shape: those outside of layers, then layer by layer.
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

/// Tensors in the making.
struct List {
    layer: usize,
    tensors: Vec<Tensor>,
}

impl List {
    fn matrix(&mut self, stem: &str, rows: usize, columns: usize, role: Role) {
        let (name, layer) = (format!("{stem}.weight"), self.layer);
        self.tensors.push(Tensor { name, rows, columns, layer, content: Content::Weights(role) });
    }

    fn vector(&mut self, name: &str, columns: usize, content: Content) {
        let (name, layer) = (name.to_owned(), self.layer);
        self.tensors.push(Tensor { name, rows: 1, columns, layer, content });
    }

    fn layer(&mut self, shape: &Shape) {
        let (hidden, intermediate) = (shape.hidden_size, shape.intermediate_size);
        let (queries, keys) = (shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
        let family = FAMILIES.iter().find(|family| family.architecture == shape.architecture);
        let norms_heads = family.is_some_and(|family| family.attention.qk_norm != QkNorm::Never);
        let norms_after = family.is_some_and(|family| family.norms == Norms::BeforeAndAfter);
        let layer = self.layer;
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let norm = |stem: &str| format!("blk.{layer}.{stem}_norm.weight");

        self.vector(&norm("attn"), hidden, Content::Norm);
        for (stem, rows, role) in
            [("attn_q", queries, Role::Other), ("attn_k", keys, Role::Other), ("attn_v", keys, Role::Values)]
        {
            self.matrix(&name(stem), rows, hidden, role);
            if shape.qkv_bias {
                self.vector(&format!("{}.bias", name(stem)), rows, Content::Bias);
            }
        }
        if norms_heads {
            self.vector(&norm("attn_q"), shape.head_dim, Content::Norm);
            self.vector(&norm("attn_k"), shape.head_dim, Content::Norm);
        }
        self.matrix(&name("attn_output"), hidden, queries, Role::AttentionOutput);
        if norms_after {
            self.vector(&norm("post_attention"), hidden, Content::Norm);
        }
        self.vector(&norm("ffn"), hidden, Content::Norm);
        self.matrix(&name("ffn_gate"), intermediate, hidden, Role::Other);
        self.matrix(&name("ffn_up"), intermediate, hidden, Role::Other);
        self.matrix(&name("ffn_down"), hidden, intermediate, Role::Down);
        if norms_after {
            self.vector(&norm("post_ffw"), hidden, Content::Norm);
        }
    }
}

/// What Llama 3 divides its rotary frequencies by.
///
/// A frequency that turns at least four times within the 8192 tokens of the first training is kept; one that does not
/// turn once is divided by `factor`; between them the division fades in. Source: Llama 3.1's reference code.
fn llama_3_factors(base: f32, rotary_dim: usize, factor: f32) -> Vec<f32> {
    const FIRST_CONTEXT: f32 = 8192.0;
    const KEPT_FROM_TURNS: f32 = 4.0;
    const DIVIDED_TO_TURNS: f32 = 1.0;
    let factor_of = |pair: usize| {
        let frequency = base.powf(-(2.0 * pair as f32) / rotary_dim as f32);
        let turns = FIRST_CONTEXT * frequency / (2.0 * PI);
        let kept = ((turns - DIVIDED_TO_TURNS) / (KEPT_FROM_TURNS - DIVIDED_TO_TURNS)).clamp(0.0, 1.0);
        1.0 / ((1.0 - kept) / factor + kept)
    };
    (0..rotary_dim / 2).map(factor_of).collect()
}
