//! The tensors of a shape: those that the graph of its architecture asks for.

use super::recorder::{Recorder, Request};
use super::shape::{Shape, rope_factors};
use crate::model::ModelGraph;
use crate::quantization_recipe::{Role, keeps_format};

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

    /// Whether the tensor counts as parameters of the model. Tables computed from the configuration do not, nor do the biases that
    /// balance the experts.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        !matches!(self.content, Content::Values(_)) && !self.name.ends_with("exp_probs_b.bias")
    }
}

/// All tensors of a shape, in the order in which its graph asks for them.
///
/// # Panics
/// When the architecture cannot be built from the shape, which is an error in the table.
#[must_use]
pub fn tensors(shape: &Shape) -> Vec<Tensor> {
    let recorder = Recorder::new(shape);
    if let Err(error) = ModelGraph::build(&recorder) {
        panic!("the shape {} does not fit its architecture: {error}", shape.name);
    }
    recorder.into_requests().into_iter().map(|request| tensor(shape, request)).collect()
}

/// Number of learnt weights.
#[must_use]
pub fn parameters(shape: &Shape) -> u64 {
    tensors(shape).iter().filter(|tensor| tensor.is_learnt()).map(|tensor| tensor.len() as u64).sum()
}

fn tensor(shape: &Shape, Request { name, rows, columns }: Request) -> Tensor {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0);
    let experts = shape.experts.filter(|_| name.ends_with("_exps.weight")).map_or(1, |experts| experts.count);
    let content = content(shape, &name, rows);
    Tensor { name, rows: rows / experts, columns, experts, layer, content }
}

/// The kind of values of a tensor.
fn content(shape: &Shape, name: &str, rows: usize) -> Content {
    let stem = name.rsplit('.').find(|part| !matches!(*part, "weight" | "bias")).unwrap_or(name);
    match stem {
        "rope_freqs" => Content::Values(rope_factors(shape).unwrap_or_default()),
        "ssm_a" => Content::Decay,
        "ssm_d" | "layer_output_scale" | "scale" => Content::Norm,
        "ffn_gate_inp" if name.ends_with(".weight") => Content::Router,
        _ if stem.contains("norm") => Content::Norm,
        _ if name.ends_with(".bias") || rows == 1 || keeps_format(name) => Content::Bias,
        _ => Content::Weights(Role::of(name, shape.tied)),
    }
}
