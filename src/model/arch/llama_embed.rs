//! Llama Embed Nemotron: Llama's layers, whose rows see each other both ways. It makes embeddings.
//!
//! Source: Babakhin et al. 2025, "Llama-Embed-Nemotron-8B: A Universal Text Embedding Model for Multilingual and Cross-Lingual
//! Tasks".

use super::family::{AttentionSpec, Direction, Family, Output};
use super::llama;

pub(super) const FAMILY: Family = Family {
    architecture: "llama-embed",
    models: "Llama Embed Nemotron",
    output: Output::Norm,
    attention: AttentionSpec { direction: Direction::BothWays, ..llama::FAMILY.attention },
    ..llama::FAMILY
};
