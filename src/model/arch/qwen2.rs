//! Qwen 2 and 2.5: biases on query, key and value.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::family::{Activation, AttentionSpec, EmbeddingScale, Family, Mixer, Norms};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec::PLAIN,
    activation: Activation::Silu,
    routing: None,
};
