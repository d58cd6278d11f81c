//! Gemma 3: one square of 896 pixels, 256 rows that see each other.
//!
//! Source: Gemma Team 2025, "Gemma 3 Technical Report".

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
    projector: "gemma3",
    tower: "SigLIP",
    gelu: Pointwise::GeluTanh,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Table,
    norm_before_merging: None,
    merging: Merging::Mean,
    merge: 4,
    merges_pixels: false,
    deep_head: &[],
    head: &[HeadOp::RmsNorm("mm.soft_emb_norm"), HeadOp::LinearOfColumns("mm.input_projection")],
    division: |_| Division::Stretched,
    filter: Filter::Bilinear,
    placeholder: "<start_of_image>",
    row_token: "<image_soft_token>",
    rows_see_each_other: true,
    parts,
};

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().text("\n\n<start_of_image>").rows(of.rows_of_tile()).text("<end_of_image>\n\n").into_parts()
}
