//! Command R and Aya: mixer and feed-forward read the same norm, a layer norm without bias; the largest model has norms of heads.
//!
//! Source: Cohere 2024, "Command R" and its reference code.

use super::family::{AttentionSpec, Family, LogitScale, NormKind, QkNorm, QkNormKind, Residual, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "command-r",
    models: "Command R, R+, Aya 23, Aya Expanse",
    logit_scale: LogitScale::Multiplies,
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    attention: AttentionSpec {
        qk_norm: QkNorm::WhereStored(QkNormKind::LayerPerHead),
        rope_pairs: RopePairs::Interleaved,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
