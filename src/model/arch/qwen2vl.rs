//! Qwen 2 VL and 2.5 VL (text): the layers of `qwen2`. Without images the three kinds of positions of a token are equal, so they
//! rotate as one.
//!
//! Source: Bai et al. 2025, "Qwen2.5-VL Technical Report".

use super::family::Family;

pub(super) const FAMILY: Family =
    Family { architecture: "qwen2vl", models: "Qwen 2 VL, 2.5 VL (text)", ..Family::PLAIN };
