//! EmbeddingGemma: Gemma 3 whose rows see all rows of their text, or those in a window around them.
//!
//! Source: Schechter Vera et al. 2025, "EmbeddingGemma".

use super::family::{AttentionSpec, Direction, Family, Output};
use super::gemma3;

pub(super) const FAMILY: Family = Family {
    architecture: "gemma-embedding",
    models: "EmbeddingGemma",
    output: Output::Norm,
    attention: AttentionSpec { direction: Direction::BothWays, ..gemma3::FAMILY.attention },
    ..gemma3::FAMILY
};
