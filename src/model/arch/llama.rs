//! Llama 2 and 3, SmolLM2, Mistral, Mixtral and other models with their layers.
//!
//! Sources: Touvron et al. 2023; Jiang et al. 2023 (Mistral's window); Jiang et al. 2024 (Mixtral). GGUF files interleave
//! rotary pairs, so query and key rows are permuted compared with the original checkpoints.

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, RopePairs, RouteWeighting,
    RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "llama",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::EveryLayer,
        ..AttentionSpec::PLAIN
    },
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: true,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
