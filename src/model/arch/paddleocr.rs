//! PaddleOCR-VL (text): Llama's layers, whose heads rotate by the positions of images too.
//!
//! Source: Cui et al. 2025, "PaddleOCR-VL".

use super::family::{AttentionSpec, AxesOrder, Family};

pub(super) const FAMILY: Family = Family {
    architecture: "paddleocr",
    models: "PaddleOCR-VL",
    attention: AttentionSpec { rope_axes: AxesOrder::Runs, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
