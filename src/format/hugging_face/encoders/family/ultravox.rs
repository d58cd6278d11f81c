//! Ultravox 0.5 and later, which have a norm in the middle of the projector.

use super::super::spec::{EncoderFamily, Place, Requirement, Source};
use super::whisper;
use crate::format::hugging_face::rules::Literal::{Bool, Text};
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["ultravox"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "ultravox",
    activation: whisper::ACTIVATION,
    defaults: whisper::DEFAULTS,
    needs_preprocessor: false,
    requires: &[
        whisper::PREPARED,
        &[
            Requirement::OneOf(Place::Model, "projector_act", &[Text("swiglu")]),
            Requirement::OneOf(Place::Model, "projector_ln_mid", &[Bool(true)]),
            Requirement::OneOf(Place::Model, "audio_latency_block_size", &[]),
        ],
    ],
    keys: &[whisper::COMMON, whisper::SIZES, &[("projector.stack_factor", Source::OfModel("stack_factor", 8))]],
    parts: &[
        whisper::LAYERS,
        whisper::OUTSIDE,
        whisper::projector(&[&[
            ("ln_pre", "norm_pre", &[]),
            ("ln_mid", "norm_mid", &[]),
            ("linear_1", "mlp.1", &[]),
            ("linear_2", "mlp.2", &[]),
        ]]),
    ],
};
