//! Whisper, and what other models with its encoder have alike.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Requirement, Source,
};
use crate::format::hugging_face::rules::Literal::{Bool, Number};
use crate::format::hugging_face::rules::Rule;
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["whisper"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: true,
    projector: "whisper",
    activation: ACTIVATION,
    defaults: DEFAULTS,
    needs_preprocessor: false,
    requires: &[PREPARED],
    keys: &[COMMON, SIZES],
    parts: &[LAYERS, OUTSIDE],
};

/// The only activation.
pub(super) const ACTIVATION: Activation = Activation { key: "activation_function", known: &[("gelu", None)] };

pub(super) const DEFAULTS: &[(&str, f64)] = &[("layer_norm_eps", 1e-5)];

/// How spectrograms are made, and rows before the layers.
pub(super) const PREPARED: &[Requirement] = &[
    Requirement::OneOf(Place::Preprocessor, "sampling_rate", &[Number(16_000.0)]),
    Requirement::OneOf(Place::Preprocessor, "n_fft", &[Number(400.0)]),
    Requirement::OneOf(Place::Preprocessor, "hop_length", &[Number(160.0)]),
    Requirement::OneOf(Place::Preprocessor, "dither", &[Number(0.0)]),
    Requirement::OneOf(Place::Encoder, "scale_embedding", &[Bool(false)]),
    Requirement::OfEncoder(Place::Preprocessor, "feature_size", "num_mel_bins"),
];

pub(super) const COMMON: &[KeyRule] = &[
    ("num_mel_bins", Source::Size("num_mel_bins")),
    ("attention.layer_norm_epsilon", Source::Number("layer_norm_eps")),
];

/// The sizes as Whisper names them.
pub(super) const SIZES: &[KeyRule] = &[
    (BLOCK_COUNT, Source::Size("encoder_layers")),
    ("embedding_length", Source::Size("d_model")),
    (HEAD_COUNT, Source::Size("encoder_attention_heads")),
];

pub(super) const LAYERS: Part = Part {
    stored: &["audio_tower.layers.*.", "encoder.layers.*."],
    target: "a.blk.*.",
    numbers: None,
    rules: &[&[
        ("self_attn_layer_norm", "ln1", &[]),
        ("final_layer_norm", "ln2", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.out_proj", "attn_out", &[]),
        ("fc1", "ffn_up", &[]),
        ("fc2", "ffn_down", &[]),
    ]],
    is_complete: true,
};

pub(super) const OUTSIDE: Part = Part {
    stored: &["audio_tower.", "encoder."],
    target: "a.",
    numbers: None,
    rules: &[&[
        ("conv1", "conv1d.1", &[]),
        ("conv2", "conv1d.2", &[]),
        ("embed_positions", "position_embd", &[]),
        ("layer_norm", "post_ln", &[]),
    ]],
    is_complete: false,
};

/// The projector.
pub(super) const fn projector(rules: &'static [&'static [Rule]]) -> Part {
    Part { stored: &["multi_modal_projector."], target: "mm.a.", numbers: None, rules, is_complete: true }
}
