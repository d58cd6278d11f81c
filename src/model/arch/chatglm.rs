//! ChatGLM 3 and GLM 4 9B: one tensor for gate and up, half of each head rotated.
//!
//! Source: GLM Team 2024, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools".

use super::family::{AttentionSpec, Family, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "chatglm",
    models: "ChatGLM 3, GLM 4 9B",
    attention: AttentionSpec { rope_pairs: RopePairs::Interleaved, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
