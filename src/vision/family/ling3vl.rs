//! Ling 3 VL: the tower of Qwen 3 VL with a norm before patches are merged and no deep layers.
//!
//! Source: the code of Ling 3 VL in vLLM (`BailingMoeV3VLForConditionalGeneration`).

use super::qwen3vl;
use super::spec::Family;
use crate::media::MediaPart;
use crate::vision::parts::{Arrangement, Parts};

pub(super) const FAMILY: Family = Family {
    projector: "ling3vl",
    tower: "Ling 3 ViT",
    norm_before_merging: Some(("mm.input_norm", None)),
    deep_head: &[],
    placeholder: "<|image_pad|><|vision_end|>",
    parts,
    ..qwen3vl::FAMILY
};

/// The rows of one tile as a grid, and a line break after the token that ends an image.
fn parts(of: &Arrangement) -> Vec<MediaPart> {
    Parts::default().grid(of.rows).text("<|vision_end|>\n").into_parts()
}
