//! Granite 4 H: state spaces of Mamba 2 and some layers of attention without rotation; the factors are those of `granite`.
//!
//! Source: IBM 2025, "Granite 4.0"; Dao & Gu 2024, "Transformers are SSMs".

use super::family::{AttentionSpec, Family, LogitScale, Recurrent, RopePairs, Rotation, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "granitehybrid",
    models: "Granite 4 H",
    logit_scale: LogitScale::Divides,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rotation: Rotation::WhereFinetuned,
        ..AttentionSpec::PLAIN
    },
    recurrent: Recurrent::StateSpace,
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
