//! DeepSeek V4: attention of all heads to one key, which is also the value, in a window and to entries of pools of positions; several
//! residual streams; experts with a shared expert, which the token alone chooses in the first layers.
//!
//! Source: DeepSeek-AI 2026, "DeepSeek-V4", and its reference code.

use super::family::{ActivationLimit, AttentionSpec, Family, Mixer, RopePairs, RoutingSpec, Scoring, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "deepseek4",
    models: "DeepSeek V4",
    mixer: Mixer::PooledAttention,
    attention: AttentionSpec {
        windows: Windows::EveryLayer,
        rope_pairs: RopePairs::Interleaved,
        ..AttentionSpec::PLAIN
    },
    activation_limit: ActivationLimit::Gate,
    routing: Some(RoutingSpec { scoring: Scoring::SqrtSoftplus, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
