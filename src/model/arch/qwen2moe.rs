//! Qwen 1.5 and 2 with experts: biases on query, key and value, and a shared expert with a gate of its own.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, QkNorm, RopePairs, RouteWeighting,
    RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2moe",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    attention: AttentionSpec {
        qk_norm: QkNorm::Never,
        rope_pairs: RopePairs::Halves,
        scale: AttentionScale::HeadDim,
        windows: Windows::Never,
        rope_base_windowed: None,
    },
    activation: Activation::Silu,
    routing: Some(RoutingSpec { scoring: Scoring::Softmax, renormalise: false, weighting: RouteWeighting::Output }),
};
