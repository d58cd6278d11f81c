//! ERNIE 4.5 with experts: dense layers first, then experts, chosen by score and bias, with a shared expert.
//!
//! Source: Baidu 2025, "ERNIE 4.5 Technical Report".

use super::family::{AttentionSpec, Family, RopePairs, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "ernie4_5-moe",
    models: "ERNIE 4.5 with experts",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
