//! Gemma 4, and the model of 12 billion weights, whose tower has no layers.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Requirement, Source,
};
use super::vit;
use crate::format::hugging_face::rules::Literal::{Bool, Number, Text};
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

/// The size of images is that of the converter of GGUF files. It has no meaning: the tiles have the proportions of the image.
const KEYS: &[KeyRule] = &[
    ("image_size", Source::Fixed(224)),
    ("patch_size", Source::Size("patch_size")),
    ("attention.layer_norm_epsilon", Source::Number("rms_norm_eps")),
    ("projector.scale_factor", Source::Size("pooling_kernel_size")),
    (
        "image_max_pixels",
        Source::PixelsOfRows {
            rows: ("max_soft_tokens", 280),
            patch: "patch_size",
            merge: (Place::Encoder, "pooling_kernel_size", 3),
        },
    ),
    ("image_mean", Source::EachColor(0.0)),
    ("image_std", Source::EachColor(1.0)),
];

const LAYER_SIZES: &[KeyRule] = &[
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    ("embedding_length", Source::Size("hidden_size")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
];

const REQUIRES: &[Requirement] = &[
    Requirement::OneOf(Place::Preprocessor, "do_resize", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "do_rescale", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "do_normalize", &[Bool(false)]),
    Requirement::OneOf(Place::Preprocessor, "rescale_factor", &[Number(1.0 / 255.0)]),
    Requirement::OneOf(
        Place::Preprocessor,
        "max_soft_tokens",
        &[Number(70.0), Number(140.0), Number(280.0), Number(560.0), Number(1120.0)],
    ),
    Requirement::OfEncoder(Place::Preprocessor, "patch_size", "patch_size"),
    Requirement::OfEncoder(Place::Preprocessor, "pooling_kernel_size", "pooling_kernel_size"),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_theta", &[Number(100.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_type", &[Text("axial")]),
    // Rows of images have the inputs of single layers that padding has.
    Requirement::OneOf(Place::Model, "text_config.pad_token_id", &[Number(0.0)]),
];

const LAYERS: Part = Part {
    stored: &["vision_tower.encoder.layers.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("input_layernorm", "ln1", &[]),
        ("post_attention_layernorm", "attn_post_norm", &[]),
        ("pre_feedforward_layernorm", "ln2", &[]),
        ("post_feedforward_layernorm", "ffn_post_norm", &[]),
        ("self_attn.q_norm", "attn_q_norm", &[]),
        ("self_attn.k_norm", "attn_k_norm", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.o_proj", "attn_out", &[]),
        ("mlp.gate_proj", "ffn_gate", &[]),
        ("mlp.up_proj", "ffn_up", &[]),
        ("mlp.down_proj", "ffn_down", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["vision_tower."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("patch_embedder.input_proj", "patch_embd", &[Op::ColorByColor]),
        ("patch_embedder.position_embedding_table", "position_embd.weight", &[]),
        ("std_bias", "std_bias", &[]),
        ("std_scale", "std_scale", &[]),
    ]],
    is_complete: false,
};

/// The values of patches are those of one patch for each embedding row.
const PATCHES: Part = Part {
    stored: &["vision_embedder."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("patch_dense.weight", "patch_embd.weight", &[Op::ColorByColor]),
        ("patch_dense.bias", "patch_embd.bias", &[]),
        ("patch_ln1", "patch_norm.1", &[Op::ColorByColor]),
        ("patch_ln2", "patch_norm.2", &[]),
        ("pos_norm", "patch_norm.3", &[]),
        ("pos_embedding", "position_embd.weight", &[Op::JoinOuter, Op::EvenFirst]),
    ]],
    is_complete: true,
};

const PROJECTOR: Part = Part {
    stored: &["embed_vision."],
    target: "mm.",
    numbers: None,
    rules: &[&[("embedding_projection", "input_projection", &[])]],
    is_complete: true,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["gemma4"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "gemma4v",
    activation: Activation { key: "hidden_activation", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    defaults: &[
        ("hidden_size", 768.0),
        ("num_hidden_layers", 16.0),
        ("num_attention_heads", 12.0),
        ("patch_size", 16.0),
        ("pooling_kernel_size", 3.0),
        ("rms_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[REQUIRES, vit::BICUBIC],
    keys: &[KEYS, LAYER_SIZES],
    parts: &[LAYERS, OUTSIDE, PROJECTOR],
};

pub(super) const UNIFIED: EncoderFamily = EncoderFamily {
    model_types: &["gemma4_unified"],
    projector: "gemma4uv",
    defaults: &[("patch_size", 16.0), ("pooling_kernel_size", 3.0), ("mm_embed_dim", 3840.0), ("rms_norm_eps", 1e-6)],
    keys: &[KEYS, &[("embedding_length", Source::Size("mm_embed_dim"))]],
    parts: &[PATCHES, PROJECTOR],
    ..FAMILY
};
