//! StarCoder and SantaCoder: GPT-2 with one head of keys and values.
//!
//! Source: Li et al. 2023, "StarCoder: may the source be with you!".

use super::family::Family;
use super::gpt2;

pub(super) const FAMILY: Family =
    Family { architecture: "starcoder", models: "StarCoder, SantaCoder, StarChat", ..gpt2::FAMILY };
