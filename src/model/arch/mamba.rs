//! Mamba and Falcon Mamba: every layer is a selective scan. There is no attention and no feed-forward.
//!
//! Source: Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces"; TII 2024, "Falcon Mamba".

use super::family::{Family, Norms, Recurrent};

pub(super) const FAMILY: Family = Family {
    architecture: "mamba",
    models: "Mamba, Falcon Mamba",
    norms: Norms::BeforeOnlyHalf,
    recurrent: Recurrent::SelectiveScan,
    ..Family::PLAIN
};
