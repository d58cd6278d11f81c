//! EXAONE 4: norms after each half of a layer and on the heads; in the larger model three windowed layers, then one with neither
//! window nor rotation.
//!
//! Source: LG AI Research 2025, "EXAONE 4.0".

use super::family::{AttentionSpec, Family, Norms, QkNorm, QkNormKind, Rotation, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "exaone4",
    models: "EXAONE 4, 4.5",
    norms: Norms::After,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        windows: Windows::AllButEvery(4),
        rotation: Rotation::LayersWithWindow,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
