//! Trinity: gated attention, norms before and after each half and on the heads; three windowed layers, then one with neither
//! window nor rotation; dense layers first, then experts with a shared expert.
//!
//! Source: Arcee AI 2025, "Trinity" and its reference code.

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, Family, Gate, Norms, QkNorm, QkNormKind, Rotation, RoutingSpec, Scoring,
    Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "afmoe",
    models: "Trinity",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::AllButEvery(4),
        rotation: Rotation::LayersWithWindow,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
