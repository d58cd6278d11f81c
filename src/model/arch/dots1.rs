//! dots.llm1: norms on the heads; dense layers first, then experts, chosen by sigmoid and bias, with a shared expert.
//!
//! Source: rednote-hilab 2025, "dots.llm1 Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "dots1",
    models: "dots.llm1",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
