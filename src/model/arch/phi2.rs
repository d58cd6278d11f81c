//! Phi 1, 1.5 and 2: mixer and feed-forward read the same layer norm; biases everywhere, GELU without a gate, a part of each
//! head rotated.
//!
//! Source: Li et al. 2023, "Textbooks Are All You Need II".

use super::family::{Family, FeedForward, NormKind, Pointwise, Residual};

pub(super) const FAMILY: Family = Family {
    architecture: "phi2",
    models: "Phi 1, 1.5, 2",
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    feed_forward: FeedForward::Ungated(Pointwise::GeluTanh),
    ..Family::PLAIN
};
