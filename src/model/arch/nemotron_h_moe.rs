//! Nemotron 3: as `nemotron_h`, with experts without gates and a shared expert; in larger models the routed experts work on
//! shorter rows.
//!
//! Source: NVIDIA 2025, "Nemotron 3 Nano: Open, Efficient Mixture-of-Experts Hybrid Mamba-Transformer Model".

use super::family::{AttentionSpec, Family, FeedForward, Norms, Pointwise, Recurrent, Rotation, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "nemotron_h_moe",
    models: "Nemotron 3 Nano, Super",
    norms: Norms::BeforeOnlyHalf,
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    recurrent: Recurrent::StateSpace,
    feed_forward: FeedForward::Ungated(Pointwise::ReluSquared),
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
