//! Ling 3: layers of the gated delta rule with a bounded decay for each key, then one of latent attention with a gate on each head;
//! dense layers first, then experts, chosen by sigmoid, bias and groups, with a shared expert.
//!
//! Source: the reference code of Ling 3 in transformers; that of Ling 3 VL in vLLM and SGLang.

use super::family::{
    Activation, AttentionSpec, AxesOrder, Family, Gate, Mixer, Recurrent, RopePairs, RoutingSpec, Scoring,
};

pub(super) const FAMILY: Family = Family {
    architecture: "bailingmoe3",
    models: "Ling 3",
    mixer: Mixer::LatentAttention,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rope_axes: AxesOrder::Runs,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::KeyDelta,
    routing: Some(RoutingSpec { scoring: Scoring::Sigmoid, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
