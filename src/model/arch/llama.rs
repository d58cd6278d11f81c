//! Llama 2 and 3, SmolLM2, Mistral, Mixtral and what else shares their layers.
//!
//! Sources: Touvron et al. 2023; Jiang et al. 2023 (Mistral's window); Jiang et al. 2024 (Mixtral). GGUF files keep rotary pairs side by side, so the
//! query and key rows are permuted against the original checkpoints.

use super::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, QkNorm, RopePairs, RouteWeighting,
    RoutingSpec, Scoring, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "llama",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    attention: AttentionSpec {
        qk_norm: QkNorm::Never,
        rope_pairs: RopePairs::Interleaved,
        scale: AttentionScale::HeadDim,
        windows: Windows::EveryLayer,
        rope_base_windowed: None,
    },
    activation: Activation::Silu,
    routing: Some(RoutingSpec { scoring: Scoring::Softmax, renormalise: true, weighting: RouteWeighting::Output }),
};
