//! LFM 2 with experts: the layers of `lfm2`, dense ones first, then experts, chosen by sigmoid and bias.
//!
//! Source: Liquid AI 2025, "LFM2 Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, Recurrent, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "lfm2moe",
    models: "LFM 2 with experts",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    recurrent: Recurrent::ShortConv,
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
