//! Pixtral and Mistral Small 3.1: one tile with the proportions of the image, a token after each line of rows.
//!
//! Source: Agrawal et al. 2024, "Pixtral 12B".

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
    projector: "pixtral",
    tower: "Pixtral",
    gelu: Pointwise::Gelu,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Rotation(Turns::Alternating),
    norm_before_merging: Some(("mm.input_norm", None)),
    merging: Merging::Joined,
    merge: 1,
    merges_pixels: false,
    deep_head: &[],
    head: &[HeadOp::OptionalByValue("mm.patch_merger"), HeadOp::Linear("mm.1"), HeadOp::Gelu, HeadOp::Linear("mm.2")],
    division: |keys| Division::Proportional { longest: keys.longest.unwrap_or(keys.side), multiple: keys.multiple },
    filter: Filter::Bicubic,
    placeholder: "[IMG]",
    row_token: "[IMG]",
    rows_see_each_other: false,
    parts,
};

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    let ([columns, lines], mut parts) = (of.rows, Parts::default());
    for line in 1..=lines {
        parts = parts.rows(columns).text(if line < lines { "[IMG_BREAK]" } else { "[IMG_END]" });
    }
    parts.into_parts()
}
