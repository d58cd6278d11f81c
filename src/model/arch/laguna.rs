//! Laguna: attention gated by softplus, norms on the heads; in some models one layer without a window, then three with one, which
//! have other heads and another rotation; dense layers first, then experts with a shared expert.
//!
//! Source: Poolside 2026, "Laguna" and its reference code.

use super::family::{
    Activation, AttentionSpec, Family, Gate, QkNorm, QkNormKind, RoutingSpec, Scoring, WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "laguna",
    models: "Laguna",
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::AllButFirstOf(4),
        windowed_rope: WindowedRope::Unscaled(None),
        gate: Gate::Projected(Activation::Softplus),
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
