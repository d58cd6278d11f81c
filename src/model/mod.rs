//! A model: hyperparameters from the file, a family that says how its layers are made, and the graph of both.
//!
//! # Layout, in reading order
//!
//! - [`arch`]: the families, one declarative file each
//! - [`hyperparameters`]: what the file's metadata says
//! - [`rope`]: rotary frequencies and their scaling rules
//! - [`weights`]: tensors by name, checked against the shape that is due
//! - [`mixer`] and [`ffn`]: the two halves of a layer
//! - [`Model::build`]: embed, layers, norm, head

pub mod arch;
pub mod ffn;
pub mod hyperparameters;
pub mod mixer;
pub mod rope;
pub mod weights;

use std::sync::Arc;

use cuelight_shaders::attention::KvShape;
use cuelight_shaders::elementwise::{Add, Scale, Softcap};
use cuelight_shaders::embed::Embed;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::op::ShapeError;
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::select_rows::SelectRows;

use crate::format::gguf::{Gguf, GgufError};
use crate::graph::{Graph, ValueId};
use arch::{EmbeddingScale, Family, Norms};
use hyperparameters::{ExpertSizes, HyperParameters};
use weights::Weights;

/// Why a file is not a model that can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself is at fault, or lacks a key or tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Nobody here knows the architecture.
    #[error("{file}: architecture {found:?} is not supported; supported are: {}", arch::known().join(", "))]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// `general.architecture`.
        found: String,
    },
    /// A key has a value that no model can have.
    #[error("{file}: key {key:?} is {found}, but must be {expected}")]
    Hyperparameter {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The rule.
        expected: String,
    },
    /// A tensor's shape differs from what the hyperparameters say.
    #[error("{file}: tensor {tensor:?} is {found:?}, but the metadata says {expected:?}")]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// [rows, columns].
        found: [usize; 2],
        /// [rows, columns].
        expected: [usize; 2],
    },
    /// The file holds layer tensors that the family has no use for, so computing without them would be wrong.
    #[error("{file}: tensor {tensor:?} is not part of the architecture {architecture:?} as this version knows it")]
    UnusedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// A layer has a router, but the metadata knows of no experts, or the family of no way to choose them.
    #[error(
        "{file}: a layer has a router of experts, but the metadata and the architecture {architecture:?} have none"
    )]
    NoExperts {
        /// The file.
        file: String,
        /// The architecture.
        architecture: String,
    },
    /// A layer has latent attention, but the metadata does not say what it is made of.
    #[error("{file}: the architecture has latent attention, but the metadata does not say of which sizes")]
    NoLatentSizes {
        /// The file.
        file: String,
    },
    /// Two ops do not fit together.
    #[error("{file}: {source}")]
    Shape {
        /// The file.
        file: String,
        /// What does not fit.
        source: ShapeError,
    },
}

/// A model ready for a backend.
#[derive(Debug)]
pub struct Model {
    /// What it computes, from token ids to logits.
    pub graph: Graph,
    /// What its metadata says.
    pub hyperparameters: HyperParameters,
    /// The cache each layer needs.
    pub kv_shapes: Vec<KvShape>,
    /// Bytes of the weights that it reads.
    pub weights_bytes: u64,
}

impl Model {
    /// Reads the hyperparameters, finds the family and wires its layers.
    ///
    /// # Errors
    /// [`ModelError`] when the architecture is unknown, or a key or tensor is missing or wrong.
    pub fn build(gguf: &Gguf) -> Result<Model, ModelError> {
        let family = arch::of(gguf)?;
        let hyperparameters = HyperParameters::read(gguf, family)?;
        let mut builder = Builder {
            weights: Weights::new(gguf),
            graph: Graph::default(),
            kv_shapes: Vec::with_capacity(hyperparameters.n_layers),
            family,
            h: &hyperparameters,
        };
        builder.wire().map_err(|error| error.in_file(gguf))?;
        builder.weights.check_all_layer_tensors_used(&hyperparameters.architecture, hyperparameters.n_layers)?;
        let weights_bytes = builder.weights.bytes();
        let Builder { graph, kv_shapes, .. } = builder;
        Ok(Model { graph, kv_shapes, weights_bytes, hyperparameters })
    }
}

/// A graph in the making.
pub struct Builder<'a> {
    /// The file's tensors.
    pub weights: Weights<'a>,
    /// The ops so far.
    pub graph: Graph,
    /// The cache that each layer so far needs.
    pub kv_shapes: Vec<KvShape>,
    /// How this model's layers are made.
    pub family: &'static Family,
    /// The model's sizes.
    pub h: &'a HyperParameters,
}

/// What may go wrong while wiring; the file's name is added once, at the end.
#[derive(Debug)]
pub enum WireError {
    /// A tensor is missing or wrong.
    Model(ModelError),
    /// Two ops do not fit.
    Shape(ShapeError),
}

impl WireError {
    fn in_file(self, gguf: &Gguf) -> ModelError {
        match self {
            WireError::Model(error) => error,
            WireError::Shape(source) => ModelError::Shape { file: gguf.path().display().to_string(), source },
        }
    }
}

impl From<ModelError> for WireError {
    fn from(error: ModelError) -> Self {
        WireError::Model(error)
    }
}

impl From<ShapeError> for WireError {
    fn from(error: ShapeError) -> Self {
        WireError::Shape(error)
    }
}

impl Builder<'_> {
    fn wire(&mut self) -> Result<(), WireError> {
        let h = self.h;
        let embedding = self.weights.matrix("token_embd.weight", h.vocab_size, h.hidden_size)?;
        let scale = match self.family.embedding_scale {
            EmbeddingScale::One => 1.0,
            EmbeddingScale::SqrtHiddenSize => (h.hidden_size as f32).sqrt(),
        };
        let mut x = self.graph.push_one(Embed::new(embedding.clone(), scale), &[])?;
        for layer in 0..h.n_layers {
            x = self.layer(layer, x)?;
        }
        let x = self.graph.push_one(SelectRows::new(), &[x])?;
        let x = self.norm("output_norm.weight", x)?;
        // Without a head of its own the model uses the embedding's matrix.
        let head = self.weights.optional_matrix("output.weight", h.vocab_size, h.hidden_size)?.unwrap_or(embedding);
        let logits = self.graph.push_one(Linear::new(vec![head], vec![None])?, &[x])?;
        if let Some(cap) = h.logit_softcap {
            self.graph.push_one(Softcap::new(cap), &[logits])?;
        }
        Ok(())
    }

    /// Norm, mixer, residual; norm, feed-forward, residual.
    fn layer(&mut self, layer: usize, x: ValueId) -> Result<ValueId, WireError> {
        let sandwich = self.family.norms == Norms::BeforeAndAfter;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");

        let normed = self.norm(&name("attn_norm"), x)?;
        let mut mixed = mixer::mix(self, layer, normed)?;
        if sandwich {
            mixed = self.norm(&name("post_attention_norm"), mixed)?;
        }
        let x = self.graph.push_one(Add, &[x, mixed])?;

        let before = match self.family.norms {
            Norms::Before | Norms::BeforeAndAfter => "ffn_norm",
            Norms::BeforeButNamedAfter => "post_attention_norm",
        };
        let normed = self.norm(&name(before), x)?;
        let mut fed = ffn::feed_forward(self, layer, x, normed)?;
        if sandwich {
            fed = self.norm(&name("post_ffw_norm"), fed)?;
        }
        let x = self.graph.push_one(Add, &[x, fed])?;
        match self.weights.optional_vector(&name("layer_output_scale"), 1)? {
            Some(scale) => Ok(self.graph.push_one(Scale::new(scale[0]), &[x])?),
            None => Ok(x),
        }
    }

    /// The sizes of the model's experts, for a layer that has some.
    fn expert_sizes(&self) -> Result<ExpertSizes, WireError> {
        let architecture = &self.h.architecture;
        let missing = || ModelError::NoExperts { file: self.weights.file(), architecture: architecture.clone() };
        Ok(self.h.experts.ok_or_else(missing)?)
    }

    /// A norm over the whole row.
    fn norm(&mut self, tensor: &str, x: ValueId) -> Result<ValueId, WireError> {
        self.grouped_norm(tensor, self.h.hidden_size, x)
    }

    /// A norm over each stretch of `group` values.
    pub fn grouped_norm(&mut self, tensor: &str, group: usize, x: ValueId) -> Result<ValueId, WireError> {
        let weight = self.weights.vector(tensor, group)?;
        self.norm_by(weight, x)
    }

    /// A norm over each stretch of as many values as there are weights.
    pub fn norm_by(&mut self, weight: Arc<[f32]>, x: ValueId) -> Result<ValueId, WireError> {
        Ok(self.graph.push_one(RmsNorm::new(weight, self.h.rms_norm_epsilon), &[x])?)
    }

    /// Several projections of one input; each is (tensor stem, output size), with its bias where the file has one.
    pub fn linear(&mut self, layer: usize, outputs: &[(&str, usize)], x: ValueId) -> Result<Vec<ValueId>, WireError> {
        let columns = self.graph.width(x);
        let mut matrices = Vec::with_capacity(outputs.len());
        let mut biases = Vec::with_capacity(outputs.len());
        for (stem, rows) in outputs {
            matrices.push(self.weights.matrix(&format!("blk.{layer}.{stem}.weight"), *rows, columns)?);
            biases.push(self.weights.optional_vector(&format!("blk.{layer}.{stem}.bias"), *rows)?);
        }
        Ok(self.graph.push(Linear::new(matrices, biases)?, &[x])?)
    }
}
