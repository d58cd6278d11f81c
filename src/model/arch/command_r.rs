//! Command R and Aya: mixer and feed-forward read the same norm, a layer norm without bias.
//!
//! Source: Cohere 2024, "Command R" and its reference code.

use super::family::{AttentionSpec, Family, LogitScale, NormKind, Residual, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "command-r",
    models: "Command R, Aya 23, Aya Expanse",
    logit_scale: LogitScale::Multiplies,
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
