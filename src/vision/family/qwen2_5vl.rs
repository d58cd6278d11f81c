//! Qwen 2.5 VL: as Qwen 2 VL; most layers of the tower attend within windows.
//!
//! Source: Bai et al. 2025, "Qwen2.5-VL Technical Report".

use super::qwen2vl;
use super::spec::Family;

pub(super) const FAMILY: Family = Family { projector: "qwen2.5vl_merger", tower: "Qwen 2.5 ViT", ..qwen2vl::FAMILY };
