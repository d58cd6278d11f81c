//! Qwen 3: norms on the heads of query and key instead of biases.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::family::{Activation, AttentionSpec, EmbeddingScale, Family, Mixer, Norms, QkNorm};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec { qk_norm: QkNorm::Always, ..AttentionSpec::PLAIN },
    activation: Activation::Silu,
    routing: None,
};
