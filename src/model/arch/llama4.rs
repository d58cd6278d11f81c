//! Llama 4 (text): three layers with rotation and chunked attention, then one with neither; in all or every other layer
//! experts with a shared expert. Experts receive rows that are already multiplied by their weight.
//!
//! Source: Meta 2025, "The Llama 4 herd" and its reference code.

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, QkNorm, RopePairs, Rotation,
    RouteWeighting, RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "llama4",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::AfterRotation,
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::ChunksButEvery { layers: 4, positions: 8192 },
        rotation: Rotation::LayersWithWindow { step: 8192, strength: 0.1 },
        ..AttentionSpec::PLAIN
    },
    activation: Activation::Silu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        weighting: RouteWeighting::Input,
        placement: ExpertPlacement::Replace,
    }),
};
