//! OLMo 1: Llama's layers with layer norms that have neither weight nor bias.
//!
//! Source: Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models".

use super::family::{AttentionSpec, Family, NormKind, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "olmo",
    models: "OLMo 1",
    norm: NormKind::LayerUnweighted,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
