//! Nemotron 3 and 4, Minitron: layer norms, squared ReLU without a gate, half of each head rotated.
//!
//! Source: Parmar et al. 2024, "Nemotron-4 15B Technical Report". GGUF files store norm weights with 1 already added.

use super::family::{Family, FeedForward, NormKind, Pointwise};

pub(super) const FAMILY: Family = Family {
    architecture: "nemotron",
    models: "Nemotron 3, 4; Minitron",
    norm: NormKind::Layer,
    feed_forward: FeedForward::Ungated(Pointwise::ReluSquared),
    ..Family::PLAIN
};
