//! Qwen 2.5 Omni, which sees as Qwen 2.5 VL and hears as Qwen 2 Audio.

use super::super::spec::{EncoderFamily, Part, Place, Requirement};
use super::{qwen_vl, whisper};
use crate::format::hugging_face::rules::Literal::Number;
use crate::media::MediaKind;

const MODEL_TYPES: &[&str] = &["qwen2_5_omni"];

/// Queries, keys and values are matrices of their own.
const PROJECTIONS: Part = Part {
    stored: &["visual.blocks.*.attn."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[("q", "attn_q", &[]), ("k", "attn_k", &[]), ("v", "attn_v", &[]), ("proj", "attn_out", &[])]],
    is_complete: true,
};

pub(super) const IMAGES: EncoderFamily = EncoderFamily {
    model_types: MODEL_TYPES,
    projector: "qwen2.5o",
    parts: &[PROJECTIONS, qwen_vl::LAYERS, qwen_vl::OUTSIDE, qwen_vl::PROJECTOR],
    ..qwen_vl::QWEN2_5
};

/// Rows of a window are those of two of these, in frames.
const WINDOW: &[Requirement] = &[Requirement::OneOf(Place::Encoder, "n_window", &[Number(100.0)])];

/// Positions are computed. The tokens around a clip are those of the language model.
const OUTSIDE: Part = Part {
    stored: &["audio_tower."],
    target: "a.",
    numbers: None,
    rules: &[&[("conv1", "conv1d.1", &[]), ("conv2", "conv1d.2", &[]), ("ln_post", "post_ln", &[])]],
    is_complete: false,
};

const PROJECTOR: Part = Part {
    stored: &["audio_tower."],
    target: "mm.a.",
    numbers: None,
    rules: &[&[("proj", "fc", &[])]],
    is_complete: false,
};

pub(super) const AUDIO: EncoderFamily = EncoderFamily {
    model_types: MODEL_TYPES,
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "qwen2.5o",
    activation: whisper::ACTIVATION,
    defaults: &[
        ("layer_norm_eps", 1e-5),
        ("num_mel_bins", 128.0),
        ("encoder_layers", 32.0),
        ("encoder_attention_heads", 20.0),
        ("d_model", 1280.0),
    ],
    needs_preprocessor: true,
    requires: &[whisper::PREPARED, WINDOW],
    keys: &[whisper::COMMON, whisper::SIZES],
    parts: &[whisper::LAYERS, OUTSIDE, PROJECTOR],
};
