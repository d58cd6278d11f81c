//! Muse Glimmer (text): a norm on embeddings, gated attention, norms before and after each half and on the heads; layers without a
//! window do not rotate.
//!
//! Source: Meta 2026, "Muse Glimmer" and its reference code.

use super::family::{
    Activation, AttentionSpec, EmbeddingNorm, Family, Gate, LogitScale, Norms, QkNorm, QkNormKind, RopePairs, Rotation,
    Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "muse-glimmer",
    models: "Muse Glimmer (text)",
    embedding_norm: EmbeddingNorm::Unweighted,
    logit_scale: LogitScale::Multiplies,
    norms: Norms::BeforeAndAfter,
    epsilon_after: Some(1e-8),
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::AllButEvery(4),
        rotation: Rotation::LayersWithWindow,
        gate: Gate::Projected(Activation::Sigmoid),
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
