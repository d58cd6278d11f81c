//! Nemotron H: each layer is the state space of Mamba 2, attention without rotation, or a feed-forward with squared ReLU.
//!
//! Source: NVIDIA 2025, "Nemotron-H"; Dao & Gu 2024, "Transformers are SSMs".

use super::family::{AttentionSpec, Family, FeedForward, Norms, Pointwise, Recurrent, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "nemotron_h",
    models: "Nemotron H, Nemotron Nano 2",
    norms: Norms::BeforeOnlyHalf,
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    recurrent: Recurrent::StateSpace,
    feed_forward: FeedForward::Ungated(Pointwise::ReluSquared),
    ..Family::PLAIN
};
