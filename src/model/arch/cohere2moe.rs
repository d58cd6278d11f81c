//! Command with experts: the layers of `cohere2`, dense ones first, which rotate, then experts, whose output and that of a shared
//! expert are averaged.
//!
//! Source: Cohere 2026, "Command A+" and its reference code.

use super::family::{
    AttentionSpec, Family, LogitScale, NormKind, Residual, RopePairs, Rotation, RoutingSpec, Scoring, SharedExpert,
    Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "cohere2moe",
    models: "Command with experts",
    logit_scale: LogitScale::Multiplies,
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::AllButFirstOf(4),
        rotation: Rotation::LayersWithWindowOrDense,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        shared: SharedExpert::Averaged,
        ..RoutingSpec::SOFTMAX
    }),
    ..Family::PLAIN
};
