//! Qwen 3 with experts in every layer, of which each row uses some whose weights add up to 1.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, QkNorm, RopePairs, RouteWeighting,
    RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3moe",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always,
        rope_pairs: RopePairs::Halves,
        scale: AttentionScale::HeadDim,
        windows: Windows::Never,
        rope_base_windowed: None,
    },
    activation: Activation::Silu,
    routing: Some(RoutingSpec { scoring: Scoring::Softmax, renormalise: true, weighting: RouteWeighting::Output }),
};
