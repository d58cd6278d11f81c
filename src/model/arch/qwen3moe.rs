//! Qwen 3 with experts in every layer, of which each row uses some whose weights add up to 1.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::{
    Activation, AttentionSpec, EmbeddingScale, ExpertStance, Family, Mixer, Norms, QkNorm, RouteWeighting, RoutingSpec,
    Scoring,
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
        stance: ExpertStance::Instead,
    }),
};
