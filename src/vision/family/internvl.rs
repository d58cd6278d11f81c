//! InternVL 2.5 and 3: tiles in a grid with the proportions of the image, then an overview.
//!
//! Source: Chen et al. 2024, "How Far Are We to GPT-4V?".

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
    projector: "internvl",
    tower: "InternViT",
    gelu: Pointwise::Gelu,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Table,
    norm_before_merging: None,
    merging: Merging::Joined,
    merge: 2,
    merges_pixels: false,
    deep_head: &[],
    head: &[
        HeadOp::LayerNorm("mm.model.mlp.0", 1e-5),
        HeadOp::Linear("mm.model.mlp.1"),
        HeadOp::Gelu,
        HeadOp::Linear("mm.model.mlp.3"),
    ],
    division: |keys| Division::NearestGrid {
        fewest: keys.fewest_tiles.unwrap_or(1),
        most: keys.most_tiles.unwrap_or(12),
    },
    filter: Filter::Bicubic,
    placeholder: "<IMG_CONTEXT>",
    row_token: "<IMG_CONTEXT>",
    rows_see_each_other: false,
    parts,
};

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().text("<img>").rows(of.count() * of.rows_of_tile()).text("</img>").into_parts()
}
