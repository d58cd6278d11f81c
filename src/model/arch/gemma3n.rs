//! Gemma 3n (text): several residual streams, a learnt residual of low rank next to attention, gates with a cutoff in the first
//! layers, an input of its own for each layer; four windowed layers, then one without a window. The last layers read the keys and
//! values of earlier ones.
//!
//! Source: Gemma Team 2025, "Gemma 3n" and its reference code.

use super::family::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, FeedForward, Norms, QkNorm, QkNormKind, Values,
    WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma3n",
    models: "Gemma 3n (text)",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        scale: AttentionScale::One,
        windows: Windows::AllButEvery(5),
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        values: Values::Normed,
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    ..Family::PLAIN
};
