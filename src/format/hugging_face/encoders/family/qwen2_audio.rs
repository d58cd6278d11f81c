//! Qwen 2 Audio.

use super::super::spec::EncoderFamily;
use super::whisper;
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["qwen2_audio"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "qwen2a",
    activation: whisper::ACTIVATION,
    defaults: whisper::DEFAULTS,
    needs_preprocessor: false,
    requires: &[whisper::PREPARED],
    keys: &[whisper::COMMON, whisper::SIZES],
    parts: &[whisper::LAYERS, whisper::OUTSIDE, whisper::projector(&[&[("linear", "fc", &[])]])],
};
