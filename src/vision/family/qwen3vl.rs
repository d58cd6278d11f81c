//! Qwen 3 VL and Qwen 3.5: as Qwen 2 VL, with a table of positions next to the rotation. The rows after some layers of the tower
//! are added to the rows after the first layers of the text model.
//!
//! Source: Bai et al. 2025, "Qwen3-VL Technical Report"; Meng et al. 2024, "DeepStack".

use cuelight_shaders::activate::Pointwise;

use super::qwen2vl;
use super::spec::Family;
use crate::tower::head::HeadOp;
use crate::vision::place_tables::Fit;
use crate::vision::positions::{Encoding, Turns};

pub(super) const FAMILY: Family = Family {
    projector: "qwen3vl_merger",
    tower: "Qwen 3 ViT",
    gelu: Pointwise::GeluTanh,
    positions: Encoding::Fitted(Fit::Stretched, Some(Turns::Alike)),
    deep_head: &[HeadOp::LayerNorm("norm", 1e-6), HeadOp::Linear("fc1"), HeadOp::Gelu, HeadOp::Linear("fc2")],
    ..qwen2vl::FAMILY
};
