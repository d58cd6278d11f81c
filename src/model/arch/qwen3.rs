//! Qwen 3: norms on the heads of query and key instead of biases.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, QkNorm, RopePairs, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3",
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
    routing: None,
};
