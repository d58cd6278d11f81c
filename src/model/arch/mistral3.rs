//! Ministral 3 and Devstral 2: Llama's layers, with queries that grow with their position.
//!
//! Source: Mistral AI 2025, "Ministral 3" and its reference code.

use super::family::{AttentionSpec, Family, RopePairs, RoutingSpec, Temperature, YarnMultiplier};

pub(super) const FAMILY: Family = Family {
    architecture: "mistral3",
    models: "Ministral 3, Devstral 2",
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        temperature: Temperature::WhereStored,
        yarn_multiplier: YarnMultiplier::OfRotated,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
