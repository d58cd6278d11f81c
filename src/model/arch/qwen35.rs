//! Qwen 3.5 (text): the layers of `qwen3next` with a dense feed-forward. Files repeat key heads in another order.
//!
//! Source: Qwen Team 2025, "Qwen3-Next"; Yang et al. 2024, "Gated Delta Networks".

use super::family::{
    Activation, AttentionSpec, AxesOrder, Family, Gate, HeadOrder, Norms, QkNorm, QkNormKind, Recurrent,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen35",
    models: "Qwen 3.5, 3.6 and 3.8",
    norms: Norms::BeforeButNamedAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_axes: AxesOrder::InTurns,
        gate: Gate::InQuery,
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::GatedDelta(HeadOrder::Tiled, Activation::Silu),
    ..Family::PLAIN
};
