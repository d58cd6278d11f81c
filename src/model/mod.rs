//! A model file as a graph: hyperparameters from the metadata, a family that says how layers are built, and the ops of both.
//!
//! # Layout, in reading order
//!
//! - [`arch`]: the families, one declarative file each
//! - [`hyperparameters`]: the metadata, checked
//! - [`rope`]: rotary frequencies and their scaling rules
//! - [`weights`]: tensors by name, checked against the expected shape
//! - [`builder`]: the graph under construction
//! - [`mixer`] and [`ffn`]: the two halves of a layer
//! - [`ModelGraph::build`]: embedding, layers, norm, head

pub mod arch;
pub mod builder;
pub mod error;
pub mod ffn;
pub mod hyperparameters;
pub mod mixer;
pub mod rope;
pub mod weights;

use cuelight_shaders::attention::KvShape;
use cuelight_shaders::elementwise::{Add, Scale, Softcap};
use cuelight_shaders::embed::Embed;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::select_rows::SelectRows;

use crate::format::gguf::Gguf;
use crate::graph::{Graph, ValueId};
use arch::{EmbeddingScale, Norms};
use builder::{BuildError, Builder};
use hyperparameters::HyperParameters;

pub use error::ModelError;

/// A model as a graph that a backend can run.
#[derive(Debug)]
pub struct ModelGraph {
    /// The ops from token ids to logits.
    pub graph: Graph,
    /// The file's metadata.
    pub hyperparameters: HyperParameters,
    /// The KV cache of each layer.
    pub kv_shapes: Vec<KvShape>,
    /// Bytes of the weights that the graph reads.
    pub weights_bytes: u64,
}

impl ModelGraph {
    /// Reads the hyperparameters, finds the family and builds its layers.
    ///
    /// # Errors
    /// [`ModelError`] when the architecture is unknown, or a key or tensor is missing or wrong.
    pub fn build(gguf: &Gguf) -> Result<ModelGraph, ModelError> {
        let family = arch::of(gguf)?;
        let hyperparameters = HyperParameters::read(gguf, family)?;
        let mut builder = Builder::new(gguf, family, &hyperparameters);
        build_ops(&mut builder).map_err(|error| error.in_file(gguf))?;
        builder.weights.check_all_layer_tensors_used(&hyperparameters.architecture, hyperparameters.n_layers)?;
        let weights_bytes = builder.weights.bytes();
        let Builder { graph, kv_shapes, .. } = builder;
        Ok(ModelGraph { graph, kv_shapes, weights_bytes, hyperparameters })
    }
}

/// Embedding, layers, norm, head.
fn build_ops(builder: &mut Builder<'_>) -> Result<(), BuildError> {
    let h = builder.h;
    let embedding = builder.weights.matrix("token_embd.weight", h.vocab_size, h.hidden_size)?;
    let scale = match builder.family.embedding_scale {
        EmbeddingScale::One => 1.0,
        EmbeddingScale::SqrtHiddenSize => (h.hidden_size as f32).sqrt(),
    };
    let mut x = builder.graph.push_one(Embed::new(embedding.clone(), scale), &[])?;
    for layer in 0..h.n_layers {
        x = build_layer(builder, layer, x)?;
    }
    let x = builder.graph.push_one(SelectRows::new(), &[x])?;
    let x = builder.norm("output_norm.weight", x)?;
    // A file without an output matrix uses the embedding's.
    let head = builder.weights.optional_matrix("output.weight", h.vocab_size, h.hidden_size)?.unwrap_or(embedding);
    let logits = builder.graph.push_one(Linear::new(vec![head], vec![None])?, &[x])?;
    if let Some(cap) = h.logit_softcap {
        builder.graph.push_one(Softcap::new(cap), &[logits])?;
    }
    Ok(())
}

/// Norm, mixer, residual; norm, feed-forward, residual.
fn build_layer(builder: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let norms_outputs = builder.family.norms == Norms::BeforeAndAfter;
    let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");

    let normed = builder.norm(&name("attn_norm"), x)?;
    let mut mixed = mixer::mix(builder, layer, normed)?;
    if norms_outputs {
        mixed = builder.norm(&name("post_attention_norm"), mixed)?;
    }
    let x = builder.graph.push_one(Add, &[x, mixed])?;

    let before = match builder.family.norms {
        Norms::Before | Norms::BeforeAndAfter => "ffn_norm",
        Norms::BeforeButNamedAfter => "post_attention_norm",
    };
    let normed = builder.norm(&name(before), x)?;
    let mut fed = ffn::feed_forward(builder, layer, x, normed)?;
    if norms_outputs {
        fed = builder.norm(&name("post_ffw_norm"), fed)?;
    }
    let x = builder.graph.push_one(Add, &[x, fed])?;
    match builder.weights.optional_vector(&name("layer_output_scale"), 1)? {
        Some(scale) => Ok(builder.graph.push_one(Scale::new(scale[0]), &[x])?),
        None => Ok(x),
    }
}
