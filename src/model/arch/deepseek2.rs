//! DeepSeek V2, V3 and R1, Kimi K2 and other models with their layers: latent attention; dense layers first, then experts
//! with a shared expert.
//!
//! Sources: DeepSeek-AI 2024, "DeepSeek-V2" (latent attention) and "DeepSeek-V3 Technical Report" (routing by sigmoid, groups
//! and bias).

use super::family::{AttentionSpec, Family, Mixer, RopePairs, RoutingSpec, Temperature};

pub(super) const FAMILY: Family = Family {
    architecture: "deepseek2",
    models: "DeepSeek V2, V3, R1; Kimi K2; Mistral Large 3; GLM 4.7 Flash; Youtu",
    mixer: Mixer::LatentAttention,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        temperature: Temperature::WhereStored,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
