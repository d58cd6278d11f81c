//! Hunyuan 3: dense layers first, then experts with a shared expert; norms on the heads.
//!
//! Source: Tencent 2026, "Hunyuan 3" and its reference code.

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "hy_v3",
    models: "Hunyuan 3",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
