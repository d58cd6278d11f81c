//! Nomic BERT with experts: no gates, and experts instead of a dense feed-forward in every second layer.
//!
//! Source: Nussbaum & Duderstadt 2025, "Training Sparse Mixture Of Experts Text Embedding Models".

use super::family::{
    AttentionSpec, Direction, EmbeddingNorm, Family, FeedForward, NormKind, Norms, Output, Pointwise, RoutingSpec,
};

pub(super) const FAMILY: Family = Family {
    architecture: "nomic-bert-moe",
    models: "Nomic Embed 2",
    embedding_norm: EmbeddingNorm::Stored,
    output: Output::Nothing,
    norm: NormKind::Layer,
    norms: Norms::AfterSum,
    attention: AttentionSpec { direction: Direction::BothWays, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
