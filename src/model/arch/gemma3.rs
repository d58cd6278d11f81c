//! Gemma 3 (text): norms on both sides and on the heads, five layers with a window to one without, each kind with its
//! own rotary base.
//!
//! Source: Gemma Team 2025, "Gemma 3". GGUF files hold the norms' weights with 1 already added. The 27B model
//! (62 layers) scales scores by hidden size over heads.

use super::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Mixer, Norms, QkNorm, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma3",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always,
        scale: AttentionScale::HeadDimBut { n_layers: 62 },
        windows: Windows::AllButEvery(6),
        rope_base_windowed: Some(10_000.0),
        ..AttentionSpec::PLAIN
    },
    activation: Activation::GeluTanh,
    routing: None,
};
