//! Gemma 3 (text): norms before and after each half of a layer and on the heads; five windowed layers, then one without a
//! window, each kind with its own rotary base.
//!
//! Source: Gemma Team 2025, "Gemma 3". GGUF files store norm weights with 1 already added. Scores are scaled as in Gemma 2.

use super::family::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, FeedForward, Norms, QkNorm, QkNormKind,
    WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma3",
    models: "Gemma 3",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        scale: AttentionScale::HiddenPerHead { most: 256 },
        windows: Windows::AllButEvery(6),
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    // All models that see have these values.
    omitted_with_images: &[
        ("attention.layer_norm_rms_epsilon", 1e-6),
        ("rope.freq_base", 1_000_000.0),
        ("rope.scaling.factor", 8.0),
    ],
    ..Family::PLAIN
};
