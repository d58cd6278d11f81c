//! Voxtral: whole windows of 30 seconds, silence included; each four rows as one.
//!
//! Source: Mistral AI 2025, "Voxtral".

use super::spec::{Family, Layers, Longest, Positions, Silence};
use crate::audio::front::Front;
use crate::audio::mel::WHISPER;
use crate::tower::head::HeadOp;
use crate::tower::merge::Merging;

pub(super) const FAMILY: Family = Family {
    projector: "voxtral",
    tower: "Whisper",
    spectrogram: WHISPER,
    silence: Silence::Heard,
    longest: Longest::Any,
    front: Front::OverTime(None),
    layers: Layers::Transformer(Positions::Table),
    epsilon: None,
    norm_before_merging: true,
    merging: Merging::Joined,
    neighbours: None,
    head: &[HeadOp::Linear("mm.a.mlp.1"), HeadOp::Gelu, HeadOp::Linear("mm.a.mlp.2")],
    head_epsilon: 1e-5,
    placeholder: "[BEGIN_AUDIO][AUDIO]",
    row_tokens: &["[AUDIO]"],
    around: ["[BEGIN_AUDIO]", ""],
};
