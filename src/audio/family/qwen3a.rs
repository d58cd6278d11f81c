//! Qwen 3 ASR and Omni: three convolutions over each second, and layers over 8 seconds; 13 rows a second.
//!
//! Source: Qwen Team 2026, "Qwen3-ASR Technical Report"; Qwen Team 2025, "Qwen3-Omni Technical Report".

use super::spec::{Family, Layers, Longest, Positions, Silence};
use crate::audio::front::{AfterConvolution, Front, Squares};
use crate::audio::grid::{Joining, Taps};
use crate::audio::mel::WHISPER;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

/// Samples that shorter clips are filled up to.
const LEAST_SAMPLES: usize = 8000;

const FRONT: Squares = Squares {
    window: 800,
    chunk: Some(100),
    stems: &["a.conv2d.1", "a.conv2d.2", "a.conv2d.3"],
    taps: Taps::BinByBin,
    then: AfterConvolution::Gelu,
    joining: Joining::ChannelByChannel,
    output: "a.conv_out",
};

pub(super) const FAMILY: Family = Family {
    projector: "qwen3a",
    tower: "Qwen 3 AuT",
    spectrogram: WHISPER,
    silence: Silence::UpTo(LEAST_SAMPLES),
    longest: Longest::Any,
    front: Front::OverSquares(&FRONT),
    layers: Layers::Transformer(Positions::Sinusoids),
    epsilon: None,
    norm_before_merging: true,
    merging: Merging::Joined,
    neighbours: Some(1),
    head: &[HeadOp::Linear("mm.a.mlp.1"), HeadOp::Gelu, HeadOp::Linear("mm.a.mlp.2")],
    head_epsilon: 1e-5,
    placeholder: "<|audio_start|><|audio_pad|><|audio_end|>",
    row_tokens: &["<|audio_pad|>"],
    around: ["<|audio_start|>", "<|audio_end|>"],
};
