//! Mamba 2: every layer is a state space. There is no attention and no feed-forward.
//!
//! Source: Dao & Gu 2024, "Transformers are SSMs".

use super::family::{Family, Norms, Recurrent};

pub(super) const FAMILY: Family = Family {
    architecture: "mamba2",
    models: "Mamba 2, Codestral Mamba",
    norms: Norms::BeforeOnlyHalf,
    recurrent: Recurrent::StateSpace,
    ..Family::PLAIN
};
