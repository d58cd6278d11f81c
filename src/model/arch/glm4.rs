//! GLM 4 (dense): norms before and after each half of a layer, one tensor for gate and up, half of each head rotated.
//!
//! Source: GLM Team 2024, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools".

use super::family::{AttentionSpec, AxesOrder, Family, Norms, RopePairs};

pub(super) const FAMILY: Family = Family {
    architecture: "glm4",
    models: "GLM 4 0414 (dense); GLM 4.1V, 4.6V Flash; GLM-OCR",
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        rope_pairs: RopePairs::Interleaved,
        rope_axes: AxesOrder::RunsOfHalves,
        ..AttentionSpec::PLAIN
    },
    ..Family::PLAIN
};
