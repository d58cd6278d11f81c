//! LFM 2: gated convolutions over three rows, and some layers of attention with norms on the heads.
//!
//! Source: Liquid AI 2025, "LFM2 Technical Report".

use super::family::{AttentionSpec, Family, QkNorm, QkNormKind, Recurrent};

pub(super) const FAMILY: Family = Family {
    architecture: "lfm2",
    models: "LFM 2, 2.5",
    attention: AttentionSpec { qk_norm: QkNorm::Always(QkNormKind::Heads), ..AttentionSpec::PLAIN },
    recurrent: Recurrent::ShortConv,
    ..Family::PLAIN
};
