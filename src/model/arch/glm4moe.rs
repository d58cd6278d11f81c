//! GLM 4.5: dense layers first, then experts, chosen by sigmoid and bias, with a shared expert; only a part of each head is
//! rotated.
//!
//! Source: GLM-4.5 Team 2025, "GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models".

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, QkNorm, RouteWeighting,
    RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "glm4moe",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::BeforeButNamedAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec { qk_norm: QkNorm::WhereStored, ..AttentionSpec::PLAIN },
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Sigmoid,
        renormalise: true,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
