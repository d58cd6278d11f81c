//! OLMo 2 and 3: norms after each half of a layer instead of before, and over whole queries and keys; in OLMo 3 three windowed
//! layers, whose rotation is not scaled, then one without a window.
//!
//! Sources: OLMo Team 2024, "2 OLMo 2 Furious"; OLMo Team 2025, "OLMo 3".

use super::family::{AttentionSpec, Family, Norms, QkNorm, QkNormKind, WindowedRope, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "olmo2",
    models: "OLMo 2, 3",
    norms: Norms::After,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Row),
        windows: Windows::AllButEvery(4),
        windowed_rope: WindowedRope::Unscaled(None),
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
