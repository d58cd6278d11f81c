//! MPT: scores that fall with distance instead of rotation, layer norms without biases, GELU without a gate.
//!
//! Source: MosaicML 2023, "Introducing MPT-7B".

use super::family::{AttentionSpec, Family, FeedForward, NormKind, Pointwise, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "mpt",
    models: "MPT 7B, 30B",
    norm: NormKind::Layer,
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    ..Family::PLAIN
};
