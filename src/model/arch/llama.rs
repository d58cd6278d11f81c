//! Llama 2 and 3, SmolLM2, Mistral, Mixtral and other models with their layers.
//!
//! Sources: Touvron et al. 2023; Jiang et al. 2023 (Mistral's window); Jiang et al. 2024 (Mixtral). GGUF files interleave
//! rotary pairs, so query and key rows are permuted compared with the original checkpoints.

use super::family::{AttentionSpec, Family, RopePairs, RoutingSpec, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "llama",
    models: "Llama 2, 3; SmolLM2; Mistral; Mixtral",
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        windows: Windows::EveryLayer,
        ..AttentionSpec::PLAIN
    },
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
