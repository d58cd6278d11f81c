//! The hearing of Qwen 2.5 Omni: as Qwen 2 Audio, with layers over 2 seconds.
//!
//! Source: Qwen Team 2025, "Qwen2.5-Omni Technical Report".

use super::qwen2a;
use super::spec::{Family, Layers, Positions, Silence};
use crate::audio::SAMPLE_RATE;
use crate::audio::front::Front;

/// Rows of a window, each of two frames.
const ROWS: usize = 100;

pub(super) const FAMILY: Family = Family {
    projector: "qwen2.5o",
    tower: "Qwen 2.5 Omni Whisper",
    silence: Silence::UnheardUpTo(30 * SAMPLE_RATE),
    front: Front::OverTime(Some(ROWS)),
    layers: Layers::Transformer(Positions::Sinusoids),
    ..qwen2a::FAMILY
};
