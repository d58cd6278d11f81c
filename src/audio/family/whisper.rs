//! Whisper: the rows of a window as they are. The decoder attends to those of one window.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision".

use super::spec::{Family, Layers, Longest, Positions, Silence};
use crate::audio::front::Front;
use crate::audio::mel::WHISPER;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

pub(super) const FAMILY: Family = Family {
    projector: "whisper",
    tower: "Whisper",
    spectrogram: WHISPER,
    silence: Silence::Heard,
    longest: Longest::Window,
    front: Front::OverTime(None),
    layers: Layers::Transformer(Positions::Table),
    epsilon: None,
    norm_before_merging: false,
    merging: Merging::Joined,
    neighbours: Some(1),
    head: &[HeadOp::LayerNorm("a.post_ln", 1e-5)],
    head_epsilon: 1e-5,
    placeholder: "<|startofaudio|>",
    row_tokens: &["<|nospeech|>", "<|nocaptions|>"],
    around: ["", ""],
};
