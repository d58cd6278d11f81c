//! Granite 3 with experts in every layer, and in some models a shared expert; the factors are those of `granite`.
//!
//! Source: Granite Team 2024, "Granite 3.0 Language Models".

use super::family::{AttentionSpec, Family, LogitScale, RopePairs, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "granitemoe",
    models: "Granite 3 with experts",
    logit_scale: LogitScale::Divides,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
