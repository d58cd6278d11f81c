//! DeepSeek V3.2: DeepSeek V3 with attention to positions that an indexer selects in each layer.
//!
//! Source: DeepSeek-AI 2025, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models".

use super::family::{AttentionSpec, Family, Mixer, RopePairs, RoutingSpec, Scoring};

pub(super) const FAMILY: Family = Family {
    architecture: "deepseek32",
    models: "DeepSeek V3.2",
    mixer: Mixer::SelectiveLatentAttention(RopePairs::Halves),
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
