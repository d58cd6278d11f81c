//! GLM 5.3 Flash: layers of the gated delta rule with a decay for each key, and some of latent attention without rotation to
//! pools of positions that an indexer selects; several residual streams; dense layers first, then experts with a shared expert.
//!
//! Source: GLM-5 Team 2026, "GLM-5.3-Flash" and its reference code.

use super::family::{
    ActivationLimit, AttentionSpec, Family, Mixer, Recurrent, RopePairs, Rotation, RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "glm5-next",
    other_names: &["glm5next"],
    models: "GLM 5.3 Flash",
    mixer: Mixer::SelectiveLatentAttention(RopePairs::Interleaved),
    attention: AttentionSpec { rotation: Rotation::Never, latent_epsilon: None, ..AttentionSpec::PLAIN },
    recurrent: Recurrent::KeyDelta,
    activation_limit: ActivationLimit::Gate,
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
