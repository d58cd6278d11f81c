//! PaddleOCR-VL: one tile with the proportions of the image, whose rows the model rotates by their columns and rows. The tower is that
//! of SigLIP with a rotation next to its table of positions.
//!
//! Source: Cui et al. 2025, "PaddleOCR-VL".

use cuelight_shaders::activate::Pointwise;

use super::qwen2vl;
use super::spec::Family;
use crate::tower::blocks::BlockActivation;
use crate::tower::head::HeadOp;
use crate::vision::division::Division;
use crate::vision::place_tables::Fit;
use crate::vision::positions::{Encoding, Turns};

pub(super) const FAMILY: Family = Family {
    projector: "paddleocr",
    tower: "SigLIP",
    gelu: Pointwise::GeluTanh,
    activation: BlockActivation::Pointwise(Pointwise::GeluTanh),
    positions: Encoding::Fitted(Fit::Linear, Some(Turns::Alike)),
    norm_before_merging: Some(("mm.input_norm", Some(1e-5))),
    head: &[HeadOp::Linear("mm.1"), HeadOp::Gelu, HeadOp::Linear("mm.2")],
    division: |keys| Division::enlarged_within_rows(keys, [188, 3009]),
    placeholder: "<|IMAGE_PLACEHOLDER|>",
    row_token: "<|IMAGE_PLACEHOLDER|>",
    ..qwen2vl::FAMILY
};
