//! Llama 4 (text): three layers that rotate and see a chunk to one that sees all and does not, and in all or every other layer
//! experts beside a shared one, which are given rows that are weighted already.
//!
//! Source: Meta 2025, "The Llama 4 herd" and its reference code. The model of 128 experts (Maverick) does not norm queries and keys.

use super::{
    Activation, AttentionSpec, EmbeddingScale, ExpertStance, Family, Mixer, Norms, QkNorm, RopePairs, Rotation,
    RouteWeighting, RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "llama4",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::UnweightedBut { n_experts: 128 },
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
        stance: ExpertStance::Instead,
    }),
};
