//! Qwen 1.5 and 2 with experts: biases on query, key and value, and a shared expert with its own gate.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, RouteWeighting, RoutingSpec,
    Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2moe",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec::PLAIN,
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: false,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
