//! Falcon 1 and 2: mixer and feed-forward read the same input, in larger models each with its own layer norm; GELU without a
//! gate.
//!
//! Source: Almazrouei et al. 2023, "The Falcon Series of Open Language Models".

use super::family::{Family, FeedForward, NormKind, Norms, Pointwise, Residual};

pub(super) const FAMILY: Family = Family {
    architecture: "falcon",
    models: "Falcon 7B, 40B, 180B; Falcon 2 11B",
    norm: NormKind::Layer,
    norms: Norms::BeforeWithSecond,
    residual: Residual::Parallel,
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    ..Family::PLAIN
};
