//! Qwen 2 VL and 2.5 VL (text): the layers of `qwen2`, whose heads rotate by the positions of images too.
//!
//! Source: Bai et al. 2025, "Qwen2.5-VL Technical Report".

use super::family::{AttentionSpec, AxesOrder, Family};

pub(super) const FAMILY: Family = Family {
    architecture: "qwen2vl",
    models: "Qwen 2 VL, 2.5 VL",
    attention: AttentionSpec { rope_axes: AxesOrder::Runs, ..AttentionSpec::PLAIN },
    ..Family::PLAIN
};
