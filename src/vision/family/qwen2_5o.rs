//! The sight of Qwen 2.5 Omni: as Qwen 2.5 VL, with other tokens.
//!
//! Source: Qwen Team 2025, "Qwen2.5-Omni Technical Report".

use super::qwen2_5vl;
use super::spec::Family;

pub(super) const FAMILY: Family =
    Family { projector: "qwen2.5o", placeholder: "<|IMAGE|>", row_token: "<|IMAGE|>", ..qwen2_5vl::FAMILY };
