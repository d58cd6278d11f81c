//! Step 3.5 and 3.7: heads gated by the logistic function of one value each, norms on the heads; windowed layers, which have more
//! heads; layers without a window rotate half of a head; dense layers first, then experts with a shared one; limits on the
//! activation in some layers.
//!
//! Source: StepFun 2026, "Step 3.5 Flash" and its reference code.

use super::family::{
    Activation, AttentionSpec, Family, Gate, QkNorm, QkNormKind, RoutingSpec, Scoring, UnwindowedRotary, WindowedRope,
    Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "step35",
    models: "Step 3.5 Flash, 3.7 Flash (text)",
    attention: AttentionSpec {
        qk_norm: QkNorm::WhereStored(QkNormKind::Heads),
        windows: Windows::EveryLayer,
        windowed_rope: WindowedRope::Unscaled(None),
        unwindowed_rotary: UnwindowedRotary::Half,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
