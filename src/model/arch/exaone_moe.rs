//! K-EXAONE: norms on the heads; three windowed layers, then one with neither window nor rotation; dense layers first, then
//! experts, chosen by sigmoid and bias, with a shared expert.
//!
//! Source: LG AI Research 2026, "K-EXAONE Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, Rotation, RoutingSpec, Scoring, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "exaone-moe",
    models: "K-EXAONE",
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::AllButEvery(4),
        rotation: Rotation::LayersWithWindow,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
