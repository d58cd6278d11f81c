//! Ling 1: the layers of Llama with experts and a shared expert.
//!
//! Source: Ling Team 2025, "Every FLOP Counts: Scaling a 300B Mixture-of-Experts LING LLM without Premium GPUs".

use super::family::{AttentionSpec, Family, RopePairs, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "bailingmoe",
    models: "Ling 1 (Lite, Plus)",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
