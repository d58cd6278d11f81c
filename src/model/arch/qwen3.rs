//! Qwen 3: norms on the heads of query and key instead of biases.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3",
    models: "Qwen 3",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
