//! Arcee AFM: Llama's layers with squared ReLU without a gate.
//!
//! Source: Arcee AI 2025, "AFM-4.5B" and its reference code.

use super::family::{AttentionSpec, Family, FeedForward, Pointwise, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "arcee",
    models: "AFM 4.5B",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::ReluSquared),
    ..Family::PLAIN
};
