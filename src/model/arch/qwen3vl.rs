//! Qwen 3 VL (text): the layers of `qwen3`. Without images the three kinds of positions of a token are equal, so they rotate as
//! one.
//!
//! Source: Bai et al. 2025, "Qwen3-VL Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen3vl",
    models: "Qwen 3 VL (text)",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
