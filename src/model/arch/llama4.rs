//! Llama 4 (text): three layers with rotation and chunked attention, then one with neither; in all or every other layer
//! experts with a shared expert. Experts receive rows that are already multiplied by their weight.
//!
//! Source: Meta 2025, "The Llama 4 herd" and its reference code.

use super::family::{
    AttentionSpec, Family, QkNorm, RopePairs, Rotation, RouteWeighting, RoutingSpec, Scoring, Temperature, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "llama4",
    models: "Llama 4 (text)",
    attention: AttentionSpec {
        qk_norm: QkNorm::UnweightedByKey,
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::ChunksButEvery { layers: 4, positions: 8192 },
        rotation: Rotation::LayersWithWindow,
        temperature: Temperature::UnrotatedLayers { step: 8192, strength: 0.1 },
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        weighting: RouteWeighting::Input,
        ..RoutingSpec::SOFTMAX
    }),
    ..Family::PLAIN
};
