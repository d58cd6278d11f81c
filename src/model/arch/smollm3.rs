//! SmolLM 3: Llama's layers, of which every fourth does not rotate.
//!
//! Source: Hugging Face 2025, "SmolLM3: smol, multilingual, long-context reasoner".

use super::family::{AttentionSpec, Family, RopePairs, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "smollm3",
    models: "SmolLM 3",
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rotation: Rotation::AllButEvery(4),
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
