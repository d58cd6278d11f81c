//! Kimi Linear: three layers of the gated delta rule with a decay for each key to one of latent attention without rotation; a
//! dense layer first, then experts with a shared expert.
//!
//! Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture".

use super::family::{AttentionSpec, Family, Mixer, Recurrent, Rotation, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "kimi-linear",
    models: "Kimi Linear",
    mixer: Mixer::LatentAttention,
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    recurrent: Recurrent::KeyDelta,
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
