//! The audio encoder of Gemma 4 E2B and E4B.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Prepared, Requirement, Source,
};
use crate::format::hugging_face::rules::Literal::{Bool, Number};
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

/// The mel bins are those of the preprocessor.
const KEYS: &[KeyRule] = &[
    ("num_mel_bins", Source::Prepared(Prepared { keys: &["feature_size"], default: Some(128), most: None })),
    ("attention.layer_norm_epsilon", Source::Number("rms_norm_eps")),
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    ("embedding_length", Source::Size("hidden_size")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
];

const REQUIRES: &[Requirement] = &[
    Requirement::OneOf(Place::Preprocessor, "sampling_rate", &[Number(16_000.0)]),
    Requirement::OneOf(Place::Preprocessor, "frame_length", &[Number(320.0)]),
    Requirement::OneOf(Place::Preprocessor, "hop_length", &[Number(160.0)]),
    Requirement::OneOf(Place::Preprocessor, "fft_length", &[Number(512.0)]),
    Requirement::OneOf(Place::Preprocessor, "fft_overdrive", &[Bool(false)]),
    Requirement::OneOf(Place::Preprocessor, "min_frequency", &[Number(0.0)]),
    Requirement::OneOf(Place::Preprocessor, "max_frequency", &[Number(8000.0)]),
    Requirement::OneOf(Place::Preprocessor, "mel_floor", &[Number(0.001)]),
    Requirement::OneOf(Place::Preprocessor, "preemphasis", &[Number(0.0)]),
    Requirement::OneOf(Place::Preprocessor, "dither", &[Number(0.0)]),
    Requirement::OneOf(Place::Preprocessor, "input_scale_factor", &[Number(1.0)]),
    Requirement::OneOf(Place::Preprocessor, "per_bin_mean", &[]),
    Requirement::OneOf(Place::Preprocessor, "per_bin_stddev", &[]),
    Requirement::OneOf(Place::Encoder, "attention_chunk_size", &[Number(12.0)]),
    Requirement::OneOf(Place::Encoder, "attention_context_left", &[Number(13.0)]),
    Requirement::OneOf(Place::Encoder, "attention_context_right", &[Number(0.0)]),
    Requirement::OneOf(Place::Encoder, "attention_logit_cap", &[Number(50.0)]),
    Requirement::OneOf(Place::Encoder, "conv_kernel_size", &[Number(5.0)]),
    Requirement::OneOf(Place::Encoder, "residual_weight", &[Number(0.5)]),
    Requirement::OneOf(Place::Encoder, "rms_norm_eps", &[Number(1e-6)]),
];

/// The names of the two norms of a convolution are exchanged in GGUF files.
const LAYERS: Part = Part {
    stored: &["audio_tower.layers.*."],
    target: "a.blk.*.",
    numbers: None,
    rules: &[&[
        ("feed_forward1.pre_layer_norm", "ffn_norm", &[]),
        ("feed_forward1.post_layer_norm", "ffn_post_norm", &[]),
        ("feed_forward2.pre_layer_norm", "ffn_norm_1", &[]),
        ("feed_forward2.post_layer_norm", "ffn_post_norm_1", &[]),
        ("norm_pre_attn", "attn_pre_norm", &[]),
        ("norm_post_attn", "attn_post_norm", &[]),
        ("norm_out", "ln2", &[]),
        ("self_attn.per_dim_scale", "per_dim_scale.weight", &[Op::Softplus]),
        ("self_attn.relative_k_proj", "attn_k_rel", &[]),
        ("lconv1d.pre_layer_norm", "conv_norm", &[]),
        ("lconv1d.conv_norm", "norm_conv", &[]),
        ("lconv1d.depthwise_conv1d", "conv_dw", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.post", "attn_out", &[]),
        ("feed_forward1.ffw_layer_1", "ffn_up", &[]),
        ("feed_forward1.ffw_layer_2", "ffn_down", &[]),
        ("feed_forward2.ffw_layer_1", "ffn_up_1", &[]),
        ("feed_forward2.ffw_layer_2", "ffn_down_1", &[]),
        ("lconv1d.linear_start", "conv_pw1", &[]),
        ("lconv1d.linear_end", "conv_pw2", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["audio_tower."],
    target: "a.",
    numbers: None,
    rules: &[&[
        ("subsample_conv_projection.layer0.conv", "conv1d.0", &[]),
        ("subsample_conv_projection.layer0.norm", "conv1d.0.norm", &[]),
        ("subsample_conv_projection.layer1.conv", "conv1d.1", &[]),
        ("subsample_conv_projection.layer1.norm", "conv1d.1.norm", &[]),
        ("subsample_conv_projection.input_proj_linear", "input_projection", &[]),
        ("output_proj", "pre_encode.out", &[]),
    ]],
    is_complete: true,
};

const PROJECTOR: Part = Part {
    stored: &["embed_audio."],
    target: "mm.a.",
    numbers: None,
    rules: &[&[("embedding_projection", "input_projection", &[])]],
    is_complete: true,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["gemma4"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "gemma4a",
    activation: Activation { key: "hidden_act", known: &[("silu", None)] },
    defaults: &[
        ("hidden_size", 1024.0),
        ("num_hidden_layers", 12.0),
        ("num_attention_heads", 8.0),
        ("rms_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[REQUIRES],
    keys: &[KEYS],
    parts: &[LAYERS, OUTSIDE, PROJECTOR],
};
