//! Seed-OSS: biases on query, key and value.
//!
//! Source: ByteDance Seed 2025, "Seed-OSS" and its reference code.

use super::family::{Family, Norms};

pub(super) const FAMILY: Family =
    Family { architecture: "seed_oss", models: "Seed-OSS", norms: Norms::BeforeButNamedAfter, ..Family::PLAIN };
