//! Llama Nemotron 51B, Super 49B and Ultra 253B, DeciLM: Llama's layers, of which each has its own heads and its own feed-forward, or
//! lacks one of them. Some have one matrix instead of attention.
//!
//! Source: Bercovich et al. 2024, "Puzzle: Distillation-Based NAS for Inference-Optimized LLMs".

use super::family::{AttentionSpec, Family, Norms, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "deci",
    models: "Llama Nemotron 51B, Super 49B, Ultra 253B; DeciLM",
    norms: Norms::BeforeEitherHalf,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
