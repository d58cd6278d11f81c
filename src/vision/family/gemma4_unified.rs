//! Gemma 4 12B: as Gemma 4, without layers. A square of patches is one patch, whose pixels are normed, multiplied by a matrix and
//! normed again.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

use super::gemma4;
use super::spec::Family;
use crate::tower::head::HeadOp;
use crate::vision::patches::ColorRange;
use crate::vision::positions::Encoding;

pub(super) const FAMILY: Family = Family {
    projector: "gemma4uv",
    tower: "Gemma 4 patches",
    colors: ColorRange::OfFile,
    has_layers: false,
    positions: Encoding::Axes(None),
    merges_pixels: true,
    head: &[HeadOp::UnweightedNorm, HeadOp::Linear("mm.input_projection")],
    ..gemma4::FAMILY
};
