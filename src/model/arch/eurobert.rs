//! EuroBERT: Llama's layers, whose rows see each other both ways. It makes embeddings.
//!
//! Source: Boizard et al. 2025, "EuroBERT: Scaling Multilingual Encoders for European Languages".

use super::family::{AttentionSpec, Direction, Family, Output};

pub(super) const FAMILY: Family = Family {
    architecture: "eurobert",
    models: "EuroBERT",
    output: Output::Norm,
    attention: AttentionSpec { direction: Direction::BothWays, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
