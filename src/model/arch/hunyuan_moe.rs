//! Hunyuan with experts in every layer and a shared expert; norms on the heads after rotation.
//!
//! Source: Tencent 2025, "Hunyuan-A13B Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "hunyuan-moe",
    models: "Hunyuan A13B",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::RotatedHeads), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
