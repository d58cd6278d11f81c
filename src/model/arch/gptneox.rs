//! GPT-NeoX and Pythia: layer norms, biases everywhere, GELU without a gate, a part of each head rotated; in most models mixer
//! and feed-forward read the same input, each with its own norm.
//!
//! Source: Black et al. 2022, "GPT-NeoX-20B".

use super::family::{Family, FeedForward, NormKind, Pointwise, Residual};

pub(super) const FAMILY: Family = Family {
    architecture: "gptneox",
    models: "GPT-NeoX, Pythia",
    norm: NormKind::Layer,
    residual: Residual::ParallelByKey,
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    ..Family::PLAIN
};
