//! Jina Embeddings 3: BERT's layers, with rotations instead of a table of positions.
//!
//! Source: Sturua et al. 2024, "jina-embeddings-v3: Multilingual Embeddings With Task LoRA".

use super::bert;
use super::family::{AttentionSpec, Direction, Family};

pub(super) const FAMILY: Family = Family {
    architecture: "jina-bert-v3",
    models: "Jina Embeddings 3",
    attention: AttentionSpec { direction: Direction::BothWays, ..AttentionSpec::PLAIN },
    ..bert::FAMILY
};
