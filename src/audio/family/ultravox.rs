//! Ultravox: the length of the clip and no silence; each eight rows as one, with two root-mean-square norms and a gate between
//! matrices.
//!
//! It is added to models that have no token for audio, so one that the vocabulary keeps free stands at its rows.
//!
//! Source: `ultravox_model.py` of fixie-ai/ultravox-v0_5-llama-3_2-1b on the Hugging Face Hub.

use super::spec::{Family, Layers, Longest, Positions, Silence};
use crate::audio::front::Front;
use crate::audio::mel::WHISPER;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

pub(super) const FAMILY: Family = Family {
    projector: "ultravox",
    tower: "Whisper",
    spectrogram: WHISPER,
    silence: Silence::None,
    longest: Longest::Any,
    front: Front::OverTime(None),
    layers: Layers::Transformer(Positions::Table),
    epsilon: None,
    norm_before_merging: true,
    merging: Merging::Joined,
    neighbours: None,
    head: &[
        HeadOp::RmsNorm("mm.a.norm_pre"),
        HeadOp::GatedLinear("mm.a.mlp.1"),
        HeadOp::RmsNorm("mm.a.norm_mid"),
        HeadOp::Linear("mm.a.mlp.2"),
    ],
    head_epsilon: 1e-6,
    placeholder: "<|audio|>",
    row_tokens: &["<|audio|>", "<|reserved_special_token_0|>", "<unused0>", "<|fim_pad|>", "<SPECIAL_20>"],
    around: ["", ""],
};
