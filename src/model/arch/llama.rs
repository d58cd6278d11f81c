//! Llama 2 and 3, SmolLM2, Mistral and what else shares their layers.
//!
//! Sources: Touvron et al. 2023; Jiang et al. 2023 (Mistral's window). GGUF files keep rotary pairs side by side, so the
//! query and key rows are permuted against the original checkpoints.

use super::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, RopePairs, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "llama",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::Before,
    attention: AttentionSpec {
        qk_norm: false,
        rope_pairs: RopePairs::Interleaved,
        scale: AttentionScale::HeadDim,
        windows: Windows::EveryLayer,
        rope_base_windowed: None,
    },
    activation: Activation::Silu,
};
