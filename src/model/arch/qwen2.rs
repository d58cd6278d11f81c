//! Qwen 2 and 2.5: biases on query, key and value.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Norms, QkNorm, RopePairs, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2",
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
    routing: None,
};
