//! Qwen 2 and 2.5: biases on query, key and value.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::family::Family;

pub(super) const FAMILY: Family = Family { architecture: "qwen2", models: "Qwen 2, 2.5", ..Family::PLAIN };
