//! MiniMax M3: as Llama with norms on heads and a clamped activation, a part of each head rotated. After some dense layers come
//! experts with a shared expert, and attention of each head of keys to blocks of positions that an indexer selects.
//!
//! Source: MiniMax 2026, "MiniMax-M3" and its reference code.

use super::family::{Activation, AttentionSpec, Family, FeedForward, Mixer, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "minimax-m3",
    models: "MiniMax M3",
    mixer: Mixer::SelectiveAttentionOfGroups,
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Gated(Activation::ClampedSwiglu),
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
