//! GLM 5: latent attention to positions that an indexer selects, in some layers those that an earlier layer has selected; dense
//! layers first, then experts with a shared expert.
//!
//! Source: GLM-5 Team 2026, "GLM-5: from Vibe Coding to Agentic Engineering".

use super::family::{AttentionSpec, Family, Mixer, RopePairs, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "glm-dsa",
    models: "GLM 5",
    mixer: Mixer::SelectiveLatentAttention(RopePairs::Interleaved),
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
