//! Kimi K3: layers of the gated delta rule with a bounded decay for each key, and some of latent attention without rotation and
//! with a gate on each value; a mean of earlier residuals before each half of a layer; dense layers first, then experts on shorter
//! rows with a shared expert.
//!
//! Source: Kimi Team 2026, "Kimi K3" and its reference code.

use super::family::{
    Activation, AttentionSpec, Family, FeedForward, Gate, Mixer, Recurrent, Rotation, RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "kimi-k3",
    models: "Kimi K3 (text)",
    mixer: Mixer::LatentAttention,
    attention: AttentionSpec {
        rotation: Rotation::Never,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::KeyDelta,
    feed_forward: FeedForward::Gated(Activation::Situ { beta: 4, linear: 25 }),
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
