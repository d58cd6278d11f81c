//! StarCoder 2: layer norms and biases everywhere, GELU without a gate.
//!
//! Source: Lozhkov et al. 2024, "StarCoder 2 and The Stack v2".

use super::family::{AttentionSpec, Family, FeedForward, NormKind, Pointwise, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "starcoder2",
    models: "StarCoder 2",
    norm: NormKind::Layer,
    attention: AttentionSpec { windows: Windows::EveryLayer, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::GeluTanh),
    ..Family::PLAIN
};
