//! Qwen 3.5 with experts (text): the layers of `qwen35`, and experts with a shared one as in `qwen3next`.
//!
//! Source: Qwen Team 2025, "Qwen3-Next"; Yang et al. 2024, "Gated Delta Networks".

use super::family::{
    Activation, AttentionSpec, AxesOrder, Family, Gate, HeadOrder, Norms, QkNorm, QkNormKind, Recurrent, RoutingSpec,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen35moe",
    models: "Qwen 3.5, 3.6 and 3.8 with experts (text)",
    norms: Norms::BeforeButNamedAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_axes: AxesOrder::InTurns,
        gate: Gate::InQuery,
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::GatedDelta(HeadOrder::Tiled, Activation::Silu),
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
