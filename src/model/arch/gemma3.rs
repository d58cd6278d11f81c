//! Gemma 3 (text): norms before and after each half of a layer and on the heads; five windowed layers, then one without a
//! window, each kind with its own rotary base.
//!
//! Source: Gemma Team 2025, "Gemma 3". GGUF files store norm weights with 1 already added. Scores are scaled as in Gemma 2.

use super::family::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Mixer, Norms, QkNorm, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma3",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always,
        scale: AttentionScale::HiddenPerHead { most: 256 },
        windows: Windows::AllButEvery(6),
        rope_base_windowed: Some(10_000.0),
        ..AttentionSpec::PLAIN
    },
    activation: Activation::GeluTanh,
    routing: None,
};
