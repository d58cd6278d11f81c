//! Jamba: selective scans of Mamba 1 with a norm of dt, B and C, every few layers attention without rotation, and experts in some
//! layers.
//!
//! Source: Lieber et al. 2024, "Jamba: A Hybrid Transformer-Mamba Language Model".

use super::family::{AttentionSpec, Family, Recurrent, Rotation, RoutingSpec};

pub(super) const FAMILY: Family = Family {
    architecture: "jamba",
    models: "Jamba",
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    recurrent: Recurrent::SelectiveScan,
    routing: Some(RoutingSpec { renormalise: false, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
