//! MiniMax M2: experts in every layer, chosen by sigmoid and bias; norms over whole queries and keys, a part of each head
//! rotated.
//!
//! Source: MiniMax 2025, "MiniMax-M2" and its reference code.

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "minimax-m2",
    models: "MiniMax M2",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Row), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
