//! EAGLE-3: draft models of one layer of Llama that compute with the residuals of the model whose tokens they draft. They cannot run
//! alone.
//!
//! Source: Li et al. 2025 (arXiv:2503.01840). Rotary pairs are interleaved, as in files of Llama.

use super::family::{AttentionSpec, Family, Generation, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "eagle3",
    models: "EAGLE-3",
    generation: Generation::Drafts,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
