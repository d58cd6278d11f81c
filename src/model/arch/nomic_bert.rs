//! Nomic BERT: BERT with rotated queries and keys instead of embeddings of positions, and a gated feed-forward.
//!
//! Source: Nussbaum et al. 2024, "Nomic Embed".

use super::family::{
    Activation, AttentionSpec, Direction, EmbeddingNorm, Family, FeedForward, NormKind, Norms, Output,
};

pub(super) const FAMILY: Family = Family {
    architecture: "nomic-bert",
    models: "Nomic Embed 1 and 1.5",
    embedding_norm: EmbeddingNorm::Stored,
    output: Output::Nothing,
    norm: NormKind::Layer,
    norms: Norms::AfterSum,
    attention: AttentionSpec { direction: Direction::BothWays, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Gated(Activation::Silu),
    ..Family::PLAIN
};
