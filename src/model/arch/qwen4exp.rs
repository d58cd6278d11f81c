//! Qwen 3.8 Flash Next: the layers of `qwen35moe` between gated residual streams. Layers of attention select pools of positions,
//! and one layer adds embeddings of n-grams.
//!
//! Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.

use super::family::{
    Activation, AttentionSpec, AxesOrder, Family, Gate, HeadOrder, Mixer, Norms, QkNorm, QkNormKind, Recurrent,
    RoutingSpec,
};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen4exp",
    models: "Qwen 3.8 Flash Next (text)",
    norms: Norms::InStreams,
    mixer: Mixer::SelectiveAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_axes: AxesOrder::InTurns,
        gate: Gate::InQuery,
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::GatedDelta(HeadOrder::Tiled, Activation::Sigmoid),
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
