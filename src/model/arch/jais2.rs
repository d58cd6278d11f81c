//! Jais 2: layer norms and biases everywhere, squared ReLU without a gate.
//!
//! Source: Inception, MBZUAI and Cerebras 2025, "Jais 2" and its reference code.

use super::family::{Family, FeedForward, NormKind, Pointwise};

pub(super) const FAMILY: Family = Family {
    architecture: "jais2",
    models: "Jais 2",
    norm: NormKind::Layer,
    feed_forward: FeedForward::Ungated(Pointwise::ReluSquared),
    ..Family::PLAIN
};
