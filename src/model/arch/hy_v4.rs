//! Hunyuan 4: latent attention with sinks and a gate for each value, to positions that an indexer selects, in some layers those
//! that an earlier layer has selected; several residual streams; dense layers first, then experts with a shared expert.
//!
//! Source: Tencent 2026, "Hy4-preview" and its reference code.

use super::family::{
    Activation, ActivationLimit, AttentionSpec, Family, Gate, Mixer, RopePairs, RoutingSpec, Scoring, Section,
};

pub(super) const FAMILY: Family = Family {
    architecture: "hy_v4",
    models: "Hunyuan 4 (Hy4)",
    mixer: Mixer::SelectiveLatentAttention(RopePairs::Interleaved),
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        indexer_epsilon: None,
        indexer_section: Section::Last,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    activation_limit: ActivationLimit::Gate,
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
