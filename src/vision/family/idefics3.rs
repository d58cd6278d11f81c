//! Idefics 3, SmolVLM and SmolVLM 2: tiles and an overview, each after tokens that name its place.
//!
//! Source: Laurençon et al. 2024, "Building and better understanding vision-language models"; Marafioti et al. 2025, "SmolVLM".

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
    projector: "idefics3",
    tower: "SigLIP",
    gelu: Pointwise::GeluTanh,
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
    head: &[HeadOp::Linear("mm.model.fc")],
    division: |keys| Division::LongestSide { longest: keys.longest.unwrap_or(4 * keys.side) },
    filter: Filter::Lanczos,
    placeholder: "<image>",
    row_token: "<image>",
    rows_see_each_other: false,
    parts,
};

const AROUND: &str = "<fake_token_around_image>";

fn parts(of: &Arrangement) -> Vec<MediaPart> {
    let ([columns, rows], mut parts) = (of.tiles, Parts::default());
    for row in 1..=rows {
        for column in 1..=columns {
            parts = parts.text(AROUND).text(&format!("<row_{row}_col_{column}>")).rows(of.rows_of_tile());
        }
        parts = parts.text("\n");
    }
    let before_overview = if rows > 0 { "\n" } else { "" };
    parts.text(before_overview).text(AROUND).text("<global-img>").rows(of.rows_of_tile()).text(AROUND).into_parts()
}
