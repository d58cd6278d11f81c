//! Qwen 3 VL with experts (text): the layers of `qwen3moe`; positions are those of `qwen3vl`.
//!
//! Source: Bai et al. 2025, "Qwen3-VL Technical Report".

use super::family::{AttentionSpec, AxesOrder, Family, QkNorm, QkNormKind, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3vlmoe",
    models: "Qwen 3 VL with experts",
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_axes: AxesOrder::InTurns,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
