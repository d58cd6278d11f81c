//! Falcon H1: every layer has attention and the state space of Mamba 2 in parallel.
//!
//! Source: TII 2025, "Falcon-H1"; Dao & Gu 2024, "Transformers are SSMs". GGUF files hold weights with the factors of the
//! model already applied, directories state them.

use super::family::{Family, LogitScale, Recurrent};

pub(super) const FAMILY: Family = Family {
    architecture: "falcon-h1",
    models: "Falcon H1",
    logit_scale: LogitScale::Multiplies,
    recurrent: Recurrent::StateSpace,
    ..Family::PLAIN
};
