//! Gemma 4 E2B and E4B: two convolutions, and a conformer whose rows see the last 12; 25 rows a second.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

use super::spec::{Family, Layers, Longest, Silence};
use crate::audio::SAMPLE_RATE;
use crate::audio::conformer::Conformer;
use crate::audio::front::{AfterConvolution, Front, Squares};
use crate::audio::grid::{Joining, Taps};
use crate::audio::mel::{Edges, Loudness, Spectrogram};
use crate::audio::mel_scale::MelScale;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

const SPECTROGRAM: Spectrogram = Spectrogram {
    frame: 320,
    transform: 512,
    scale: MelScale::Htk,
    edges: Edges::ZerosBefore,
    loudness: Loudness::Magnitude(0.001),
};

const FRONT: Squares = Squares {
    window: 3000,
    chunk: None,
    stems: &["a.conv1d.0", "a.conv1d.1"],
    taps: Taps::TimeByTime,
    then: AfterConvolution::NormAndRelu,
    joining: Joining::BinByBin,
    output: "a.input_projection",
};

const CONFORMER: Conformer = Conformer { span: 12, kernel: 5, softcap: 50.0, feed_forward_factor: 0.5 };

/// The epsilon is the same in every model, whatever the key of a file says.
const EPSILON: f32 = 1e-6;

pub(super) const FAMILY: Family = Family {
    projector: "gemma4a",
    tower: "Gemma 4 conformer",
    spectrogram: SPECTROGRAM,
    silence: Silence::UpTo(0),
    longest: Longest::Samples(30 * SAMPLE_RATE),
    front: Front::OverSquares(&FRONT),
    layers: Layers::Conformer(&CONFORMER),
    epsilon: Some(EPSILON),
    norm_before_merging: false,
    merging: Merging::Joined,
    neighbours: Some(1),
    head: &[HeadOp::Linear("a.pre_encode.out"), HeadOp::UnweightedNorm, HeadOp::Linear("mm.a.input_projection")],
    head_epsilon: EPSILON,
    placeholder: "<|audio|>",
    row_tokens: &["<|audio|>"],
    around: ["<|audio>", "<audio|>"],
};
