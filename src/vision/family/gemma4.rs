//! Gemma 4: one tile with the proportions of the image, of up to 280 rows unless the file says otherwise. Patches have tables of
//! positions for both axes, and the means of squares of patches become rows.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

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

/// Most rows of an image.
const ROWS: usize = 280;

pub(super) const FAMILY: Family = Family {
    projector: "gemma4v",
    tower: "Gemma 4 ViT",
    gelu: Pointwise::GeluTanh,
    activation: BlockActivation::Pointwise(Pointwise::GeluTanh),
    colors: ColorRange::Doubled,
    has_layers: true,
    heads_form: HeadForm::NormedValues,
    positions: Encoding::Axes(Some(Turns::ByHalf)),
    norm_before_merging: None,
    merging: Merging::Mean,
    merge: 3,
    merges_pixels: false,
    deep_head: &[],
    head: &[
        HeadOp::TimesRootOfWidth,
        HeadOp::OptionalStandard(["v.std_bias", "v.std_scale"]),
        HeadOp::UnweightedNorm,
        HeadOp::Linear("mm.input_projection"),
    ],
    division: |keys| Division::filled(keys, ROWS),
    filter: Filter::Bicubic,
    placeholder: "<|image|>",
    row_token: "<|image|>",
    rows_see_each_other: true,
    parts,
};

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().text("<|image>").rows(of.rows_of_tile()).text("<image|>").into_parts()
}
