//! Qwen 2 Audio: the mean of each two rows, and a matrix.
//!
//! Source: Chu et al. 2024, "Qwen2-Audio Technical Report".

use super::spec::{Family, Layers, Longest, Positions, Silence};
use crate::audio::front::Front;
use crate::audio::mel::WHISPER;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

pub(super) const FAMILY: Family = Family {
    projector: "qwen2a",
    tower: "Whisper",
    spectrogram: WHISPER,
    silence: Silence::Unheard,
    longest: Longest::Any,
    front: Front::OverTime(None),
    layers: Layers::Transformer(Positions::Table),
    epsilon: None,
    norm_before_merging: false,
    merging: Merging::Mean,
    neighbours: Some(2),
    head: &[HeadOp::LayerNorm("a.post_ln", 1e-5), HeadOp::Linear("mm.a.fc")],
    head_epsilon: 1e-5,
    placeholder: "<|audio_bos|><|AUDIO|><|audio_eos|>",
    row_tokens: &["<|AUDIO|>"],
    around: ["<|audio_bos|>", "<|audio_eos|>"],
};
