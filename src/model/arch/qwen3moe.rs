//! Qwen 3 with experts in every layer; the weights of a row's experts sum to 1.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, QkNorm, RouteWeighting,
    RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3moe",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec { qk_norm: QkNorm::Always, ..AttentionSpec::PLAIN },
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: true,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
