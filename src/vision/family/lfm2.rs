//! LFM2-VL: one tile with the proportions of the image, or square tiles and that one as an overview.
//!
//! Source: Liquid AI 2025, "LFM2 Technical Report"; Tschannen et al. 2025, "SigLIP 2".

use cuelight_shaders::activate::Pointwise;

use super::spec::Family;
use crate::media::MediaPart;
use crate::tower::blocks::{BlockActivation, HeadForm};
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;
use crate::vision::division::Division;
use crate::vision::parts::{Arrangement, Parts};
use crate::vision::patches::ColorRange;
use crate::vision::place_tables::Fit;
use crate::vision::positions::Encoding;
use crate::vision::resample::Filter;

pub(super) const FAMILY: Family = Family {
    projector: "lfm2",
    tower: "SigLIP 2",
    gelu: Pointwise::GeluTanh,
    activation: BlockActivation::QuickGelu,
    colors: ColorRange::OfFile,
    has_layers: true,
    heads_form: HeadForm::Scaled,
    positions: Encoding::Fitted(Fit::Resized, None),
    norm_before_merging: None,
    merging: Merging::Joined,
    merge: 2,
    merges_pixels: false,
    deep_head: &[],
    head: &[
        HeadOp::OptionalLayerNorm("mm.input_norm", 1e-5),
        HeadOp::Linear("mm.1"),
        HeadOp::Gelu,
        HeadOp::Linear("mm.2"),
    ],
    division: |keys| Division::tiles_of_large(keys),
    filter: Filter::Bilinear,
    placeholder: "<image>",
    row_token: "<image>",
    rows_see_each_other: false,
    parts,
};

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    let ([columns, rows], mut parts) = (of.tiles, Parts::default().text("<|image_start|>"));
    for row in 1..=rows {
        for column in 1..=columns {
            parts = parts.text(&format!("<|img_row_{row}_col_{column}|>")).rows(of.rows_of_tile());
        }
    }
    let before_overview = if rows > 0 { "<|img_thumbnail|>" } else { "" };
    let overview = of.overview[0] * of.overview[1];
    parts.text(before_overview).rows(overview).text("<|image_end|>").into_parts()
}
