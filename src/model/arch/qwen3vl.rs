//! Qwen 3 VL (text): the layers of `qwen3`, whose heads rotate by the positions of images too.
//!
//! Source: Bai et al. 2025, "Qwen3-VL Technical Report".

use super::family::{AttentionSpec, AxesOrder, Family, QkNorm, QkNormKind};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3vl",
    models: "Qwen 3 VL",
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_axes: AxesOrder::InTurns,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
