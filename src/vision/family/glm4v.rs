//! GLM 4.1V, 4.5V and 4.6V, GLM-OCR: one tile with the proportions of the image, whose rows the model rotates by their columns and
//! rows. A convolution merges the patches of a square; a gated feed-forward follows. GLM-OCR has no table of positions.
//!
//! Source: GLM-V Team 2025, "GLM-4.1V-Thinking and GLM-4.5V".

use super::qwen2vl;
use super::spec::Family;
use crate::tower::head::HeadOp;
use crate::vision::division::Division;
use crate::vision::place_tables::Fit;
use crate::vision::positions::{Encoding, Turns};

pub(super) const FAMILY: Family = Family {
    projector: "glm4v",
    tower: "GLM ViT",
    positions: Encoding::Fitted(Fit::Cubic, Some(Turns::Alike)),
    head: &[
        HeadOp::Convolution("mm.patch_merger"),
        HeadOp::Linear("mm.model.fc"),
        HeadOp::LayerNorm("mm.post_norm", 1e-5),
        HeadOp::Gelu,
        HeadOp::GatedFeedForward(["mm.gate", "mm.up", "mm.down"]),
    ],
    division: |keys| Division::enlarged_within_rows(keys, [8, 4096]),
    placeholder: "<|image|>",
    row_token: "<|image|>",
    ..qwen2vl::FAMILY
};
