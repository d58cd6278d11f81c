//! StableLM: layer norms, a part of each head rotated; in some models mixer and feed-forward read the same norm, and each head has
//! a norm.
//!
//! Source: Bellagente et al. 2024, "Stable LM 2 1.6B Technical Report".

use super::family::{AttentionSpec, Family, NormKind, QkNorm, QkNormKind, Residual};

pub(super) const FAMILY: Family = Family {
    architecture: "stablelm",
    models: "StableLM 3B, 2 1.6B, 2 12B",
    norm: NormKind::Layer,
    residual: Residual::ParallelWithOneNorm,
    attention: AttentionSpec { qk_norm: QkNorm::WhereStored(QkNormKind::LayerPerHead), ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
