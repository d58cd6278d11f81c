//! DBRX: layer norms without biases, limited queries, keys and values, experts in every layer.
//!
//! Source: Databricks 2024, "Introducing DBRX".

use super::family::{Family, NormKind, Norms, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "dbrx",
    models: "DBRX",
    norm: NormKind::Layer,
    norms: Norms::BeforeButNamedOutput,
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
