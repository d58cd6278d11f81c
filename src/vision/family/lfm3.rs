//! LFM3-VL: one tile with the proportions of the image. Most layers of the tower have a gated convolution over the grid of patches
//! instead of attention.
//!
//! Source: transformers' `Lfm3VlVisionModel`.

use super::spec::Family;
use super::{llava, qwen2vl};
use crate::vision::positions::{Encoding, Turns};

pub(super) const FAMILY: Family = Family {
    projector: "lfm3vl",
    tower: "LFM 3 ViT",
    positions: Encoding::Rotation(Turns::Slower),
    norm_before_merging: Some(("mm.input_norm", Some(1e-6))),
    parts: llava::parts,
    ..qwen2vl::FAMILY
};
