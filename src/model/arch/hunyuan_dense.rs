//! Hunyuan (dense): norms on the heads after rotation.
//!
//! Source: Tencent 2025, "Hunyuan" and its reference code.

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind};

pub(super) const FAMILY: Family = Family {
    architecture: "hunyuan-dense",
    models: "Hunyuan 0.5B to 7B",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::RotatedHeads), ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
