//! Qwen 3 Next: three layers of the gated delta rule to one of gated attention, and many experts with a shared one.
//!
//! Source: Qwen Team 2025, "Qwen3-Next"; Yang et al. 2024, "Gated Delta Networks".

use super::family::{
    Activation, AttentionSpec, Family, Gate, HeadOrder, Norms, QkNorm, QkNormKind, Recurrent, RoutingSpec,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3next",
    models: "Qwen 3 Next, Qwen 3 Coder Next",
    norms: Norms::BeforeButNamedAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        gate: Gate::InQuery,
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::GatedDelta(HeadOrder::Grouped, Activation::Silu),
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
