//! StableLM: layer norms, a part of each head rotated; in some models mixer and feed-forward read the same norm.
//!
//! Source: Bellagente et al. 2024, "Stable LM 2 1.6B Technical Report".

use super::family::{Family, NormKind, Residual};

pub(super) const FAMILY: Family = Family {
    architecture: "stablelm",
    models: "StableLM 3B, 2 1.6B",
    norm: NormKind::Layer,
    residual: Residual::ParallelWithOneNorm,
    ..Family::PLAIN
};
