//! Ling 2 and Ring 2: norms on the heads, part of each head rotated; dense layers first, then experts, chosen by sigmoid, bias and
//! groups, with a shared expert.
//!
//! Source: Ling Team 2025, "Every Activation Boosted: Scaling General Reasoner to 1 Trillion Open Language Foundation".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "bailingmoe2",
    models: "Ling 2, Ring 2",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
