//! EXAONE 3 and 3.5: the layers of Llama, with halves of a head as rotated pairs.
//!
//! Source: LG AI Research 2024, "EXAONE 3.5: Series of Large Language Models for Real-world Use Cases".

use super::family::Family;

pub(super) const FAMILY: Family = Family { architecture: "exaone", models: "EXAONE 3, 3.5", ..Family::PLAIN };
