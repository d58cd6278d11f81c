//! GLM 4.5: dense layers first, then experts that are chosen by sigmoid and bias beside a shared one; a part of each head is
//! rotated.
//!
//! Source: GLM-4.5 Team 2025, "GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models".

use super::{
    Activation, AttentionSpec, EmbeddingScale, ExpertStance, Family, Mixer, Norms, QkNorm, RouteWeighting, RoutingSpec,
    Scoring,
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
        stance: ExpertStance::Instead,
    }),
};
