//! MiniCPM: the layers of Llama with factors on embeddings, residual branches and logits.
//!
//! Source: Hu et al. 2024, "MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training Strategies".

use super::family::{AttentionSpec, EmbeddingScale, Family, LogitScale, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "minicpm",
    models: "MiniCPM 1, 2, 4",
    // Older files lack the keys of all three factors.
    embedding_scale: EmbeddingScale::ByKey,
    logit_scale: LogitScale::Divides,
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
