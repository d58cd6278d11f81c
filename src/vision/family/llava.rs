//! LLaVA 1.5: one square with the whole image, the rows before the last layer of CLIP.
//!
//! Source: Liu et al. 2023, "Improved Baselines with Visual Instruction Tuning".

use cuelight_shaders::activate::Pointwise;

use super::spec::Family;
use crate::media::MediaPart;
use crate::tower::blocks::{BlockActivation, HeadForm};
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;
use crate::vision::division::Division;
use crate::vision::parts::{Arrangement, Parts};
use crate::vision::patches::ColorRange;
use crate::vision::positions::Encoding;
use crate::vision::resample::Filter;

pub(super) const FAMILY: Family = Family {
    projector: "mlp",
    tower: "CLIP",
    gelu: Pointwise::Gelu,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Table,
    norm_before_merging: None,
    merging: Merging::Joined,
    merge: 1,
    merges_pixels: false,
    deep_head: &[],
    head: &[HeadOp::Linear("mm.0"), HeadOp::Gelu, HeadOp::Linear("mm.2")],
    division: |keys| if keys.is_cropped { Division::Cropped } else { Division::Padded },
    filter: Filter::Bicubic,
    placeholder: "<image>",
    row_token: "<image>",
    rows_see_each_other: false,
    parts,
};

pub(super) fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().rows(of.rows_of_tile()).into_parts()
}
