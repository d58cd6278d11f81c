//! Qwen 3 with experts in every layer; the weights of a row's experts sum to 1.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3moe",
    models: "Qwen 3 with experts",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
