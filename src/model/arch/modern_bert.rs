//! ModernBERT: rows see all rows of their text in every third layer and those near them in the others, with another base of
//! rotation in each; norms come before both halves of a layer, and feed-forwards are gated by GELU.
//!
//! Source: Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder".

use super::family::{
    AttentionSpec, ClassifierHead, Direction, EmbeddingNorm, Family, FeedForward, NormKind, Norms, Output, Pointwise,
    WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "modern-bert",
    models: "ModernBERT: GTE ModernBERT, ModernBERT Embed, Granite Embedding R2",
    embedding_norm: EmbeddingNorm::Stored,
    output: Output::Norm,
    norm: NormKind::Layer,
    norms: Norms::BeforeButFirstMixer,
    attention: AttentionSpec {
        direction: Direction::BothWays,
        windows: Windows::AllButFirstOf(3),
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::GatedBy(Pointwise::Gelu),
    classifier: ClassifierHead::GeluOfMean,
    ..Family::PLAIN
};
