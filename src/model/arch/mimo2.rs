//! MiMo V2: windowed layers, which have more heads of keys and an attention sink per head, and every few layers full attention;
//! values shorter than keys; a dense layer, then experts.
//!
//! Source: Xiaomi 2026, "MiMo-V2-Flash Technical Report".

use super::family::{AttentionSpec, Family, RoutingSpec, Scoring, WindowedRope, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "mimo2",
    models: "MiMo V2 Flash, V2.5 (text)",
    attention: AttentionSpec {
        windows: Windows::EveryLayer,
        windowed_rope: WindowedRope::Unscaled(None),
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
