//! Apertus: xIELU without a gate, norms on the heads.
//!
//! Source: Project Apertus 2025, "Apertus: Democratizing Open and Compliant LLMs for Global Language Environments".

use super::family::{AttentionSpec, Family, FeedForward, QkNorm, QkNormKind};

pub(super) const FAMILY: Family = Family {
    architecture: "apertus",
    models: "Apertus",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::UngatedXielu,
    ..Family::PLAIN
};
