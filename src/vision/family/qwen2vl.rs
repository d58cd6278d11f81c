//! Qwen 2 VL: one tile with the proportions of the image, whose rows the model rotates by their columns and rows.
//!
//! Source: Wang et al. 2024, "Qwen2-VL".

use cuelight_shaders::activate::Pointwise;

use super::spec::Family;
use crate::media::MediaPart;
use crate::tower::blocks::{BlockActivation, HeadForm};
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;
use crate::vision::division::Division;
use crate::vision::parts::{Arrangement, Parts};
use crate::vision::patches::ColorRange;
use crate::vision::positions::{Encoding, Turns};
use crate::vision::resample::Filter;

pub(super) const FAMILY: Family = Family {
    projector: "qwen2vl_merger",
    tower: "Qwen 2 ViT",
    gelu: Pointwise::Gelu,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Rotation(Turns::Alike),
    norm_before_merging: None,
    merging: Merging::Joined,
    merge: 2,
    merges_pixels: false,
    head: &[HeadOp::Linear("mm.0"), HeadOp::Gelu, HeadOp::Linear("mm.2")],
    deep_head: &[],
    division: |keys| Division::within_pixels(keys),
    filter: Filter::Bicubic,
    placeholder: "<|image_pad|>",
    row_token: "<|image_pad|>",
    rows_see_each_other: false,
    parts,
};

/// The rows of one tile as a grid. The template writes what is around them.
pub(super) fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().grid(of.rows).into_parts()
}
