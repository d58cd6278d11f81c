//! Gemma 2: norms before and after each half of a layer, a window in every other layer, soft caps on scores and logits.
//!
//! Source: Gemma Team 2024, "Gemma 2". GGUF files store norm weights with 1 already added. The reference code scales scores by
//! 256 in models with heads of 256 values, and by hidden size over heads in those with smaller heads.

use super::family::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, FeedForward, Norms, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma2",
    models: "Gemma 2",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        scale: AttentionScale::HiddenPerHead { most: 256 },
        windows: Windows::AllButEvery(2),
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    ..Family::PLAIN
};
