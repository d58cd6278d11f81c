//! Qwen 1.5 and 2 with experts: biases on query, key and value, and a shared expert with its own gate.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::family::{Family, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2moe",
    models: "Qwen 1.5 and 2 with experts",
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
