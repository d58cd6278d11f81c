//! EXAONE 4.5: the tower of Qwen 2.5 VL with fewer heads of keys and values. The model does not rotate its rows.
//!
//! Source: LG AI Research 2026, "EXAONE 4.5 Technical Report".

use super::spec::Family;
use super::{llava, qwen2_5vl};

pub(super) const FAMILY: Family =
    Family { projector: "exaone4_5", tower: "EXAONE 4.5 ViT", parts: llava::parts, ..qwen2_5vl::FAMILY };
