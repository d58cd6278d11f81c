//! GLM 4.5: dense layers first, then experts, chosen by sigmoid and bias, with a shared expert; only a part of each head is
//! rotated.
//!
//! Source: GLM-4.5 Team 2025, "GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models".

use super::family::{AttentionSpec, AxesOrder, Family, Norms, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "glm4moe",
    models: "GLM 4.5, 4.5V, 4.6, 4.6V; Solar Open",
    norms: Norms::BeforeButNamedAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::WhereStored(QkNormKind::Heads),
        rope_axes: AxesOrder::Runs,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
