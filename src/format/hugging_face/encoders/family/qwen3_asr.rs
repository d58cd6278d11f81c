//! Qwen 3 ASR, as its own program and as transformers store it.

use super::super::spec::{EncoderFamily, Part, Place, Requirement};
use super::whisper;
use crate::format::hugging_face::rules::Literal::Number;
use crate::media::MediaKind;

/// The frames of a chunk are twice the window of convolutions. Layers attend within the longer window.
pub(super) const WINDOWS: &[Requirement] = &[
    Requirement::OneOf(Place::Encoder, "n_window", &[Number(50.0)]),
    Requirement::OneOf(Place::Encoder, "n_window_infer", &[Number(800.0)]),
    Requirement::OneOf(Place::Preprocessor, "n_window", &[Number(50.0)]),
    Requirement::OneOf(Place::Preprocessor, "min_length", &[Number(8000.0)]),
];

/// Positions are computed, and so have no tensor.
pub(super) const OUTSIDE: Part = Part {
    stored: &["audio_tower."],
    target: "a.",
    numbers: None,
    rules: &[&[
        ("conv2d1", "conv2d.1", &[]),
        ("conv2d2", "conv2d.2", &[]),
        ("conv2d3", "conv2d.3", &[]),
        ("conv_out", "conv_out", &[]),
        ("ln_post", "post_ln", &[]),
    ]],
    is_complete: false,
};

/// The projector as a part of the encoder.
pub(super) const PROJECTOR: Part = Part {
    stored: &["audio_tower."],
    target: "mm.a.",
    numbers: None,
    rules: &[&[("proj1", "mlp.1", &[]), ("proj2", "mlp.2", &[])]],
    is_complete: true,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["qwen3_asr"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "qwen3a",
    activation: whisper::ACTIVATION,
    defaults: &[("layer_norm_eps", 1e-5), ("num_mel_bins", 128.0)],
    needs_preprocessor: true,
    requires: &[whisper::PREPARED, WINDOWS],
    keys: &[whisper::COMMON, whisper::SIZES],
    parts: &[
        whisper::LAYERS,
        OUTSIDE,
        PROJECTOR,
        whisper::projector(&[&[("linear_1", "mlp.1", &[]), ("linear_2", "mlp.2", &[])]]),
    ],
};
