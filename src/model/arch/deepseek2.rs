//! DeepSeek V2, V3 and R1, Kimi K2 and other models with their layers: latent attention; dense layers first, then experts
//! with a shared expert.
//!
//! Sources: DeepSeek-AI 2024, "DeepSeek-V2" (latent attention) and "DeepSeek-V3 Technical Report" (routing by sigmoid, groups
//! and bias).

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, RopePairs, RouteWeighting,
    RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "deepseek2",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::LatentAttention,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: false,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
