//! Granite with windows: the factors of `granite`, an attention sink per head, and layers with a window as the file says.
//!
//! Source: IBM 2026, "Granite 4.1" and its reference code.

use super::family::{AttentionSpec, Family, LogitScale, RopePairs, RoutingSpec, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "granite_swa",
    models: "Granite with sliding windows",
    logit_scale: LogitScale::Divides,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::EveryLayer,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
