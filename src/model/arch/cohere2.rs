//! Command R7B and Command A: mixer and feed-forward read the same norm, a layer norm without bias; three windowed layers, then
//! one with neither window nor rotation.
//!
//! Source: Cohere 2025, "Command A: An Enterprise-Ready Large Language Model".

use super::family::{AttentionSpec, Family, LogitScale, NormKind, Residual, RopePairs, Rotation, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "cohere2",
    models: "Command R7B, Command A",
    logit_scale: LogitScale::Multiplies,
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::AllButEvery(4),
        rotation: Rotation::LayersWithWindow,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
