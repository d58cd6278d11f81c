//! Mellum 2: experts in every layer, norms on the heads; three windowed layers, then one without a window, whose context was
//! extended.
//!
//! Source: JetBrains 2026, "Mellum 2" and its reference code.

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec, WindowedRope, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "mellum",
    models: "Mellum 2",
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::AllButEvery(4),
        windowed_rope: WindowedRope::Unscaled(None),
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
