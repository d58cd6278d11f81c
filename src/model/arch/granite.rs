//! Granite 3 and 4 (dense): Llama's layers, with factors on the embeddings, the scores, the residual branches and the logits.
//!
//! Source: Granite Team 2024, "Granite 3.0 Language Models".

use super::family::{AttentionSpec, Family, LogitScale, RopePairs, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "granite",
    models: "Granite 3, 4.1 (dense)",
    logit_scale: LogitScale::Divides,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rotation: Rotation::WhereFinetuned,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
