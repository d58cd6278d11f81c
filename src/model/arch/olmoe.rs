//! OLMoE: experts in every layer, whose weights are not made to sum to 1; norms over whole queries and keys.
//!
//! Source: Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "olmoe",
    models: "OLMoE",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Row), ..AttentionSpec::PLAIN },
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
