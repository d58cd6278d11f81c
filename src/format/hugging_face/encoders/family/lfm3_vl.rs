//! LFM3-VL. Its kernels of patches cover two frames; those of an image are alike. Published models have other names for some tensors.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Requirement, Source,
};
use super::{llava, qwen_vl, vit};
use crate::format::hugging_face::rules::Literal::{Number, Text};
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

const KEYS: &[KeyRule] = &[
    ("image_size", Source::Size("image_size")),
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
    ("attention.head_count_kv", Source::Size("num_key_value_heads")),
    ("embedding_length", Source::Size("hidden_size")),
    ("spatial_merge_size", Source::Size("spatial_merge_size")),
    ("attention.layer_norm_epsilon", Source::Number("norm_eps")),
    ("image_resize_algo", Source::Text("bicubic")),
];

/// The base of rotations has a name of its own in published models.
const REQUIRES: &[Requirement] = &[
    llava::GELU_BETWEEN,
    Requirement::OneOf(Place::Model, "projector_layer_norm_eps", &[Number(1e-6)]),
    Requirement::OneOf(Place::Encoder, "temporal_patch_size", &[Number(2.0)]),
    Requirement::OneOf(Place::Encoder, "in_channels", &[Number(3.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_theta", &[Number(1e6)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_type", &[Text("axial")]),
    Requirement::OneOf(Place::Encoder, "rope_theta", &[Number(1e6)]),
    Requirement::OneOf(Place::Encoder, "vision_rope_theta", &[Number(1e6)]),
    Requirement::OneOf(Place::Preprocessor, "temporal_patch_size", &[Number(2.0)]),
    Requirement::OfEncoder(Place::Preprocessor, "patch_size", "patch_size"),
    Requirement::OfEncoder(Place::Preprocessor, "merge_size", "spatial_merge_size"),
    Requirement::OfEncoder(Place::Model, "downsample_factor", "spatial_merge_size"),
];

const LAYERS: Part = Part {
    stored: &["vision_tower.layers.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("operator_norm", "ln1", &[]),
        ("ffn_norm", "ln2", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.out_proj", "attn_out", &[]),
        ("self_attn.q_norm", "attn_q_norm", &[]),
        ("self_attn.k_norm", "attn_k_norm", &[]),
        ("self_attn.q_layernorm", "attn_q_norm", &[]),
        ("self_attn.k_layernorm", "attn_k_norm", &[]),
        ("conv.in_proj", "conv2d_in_proj", &[]),
        ("conv.spatial_conv", "conv2d_spatial", &[]),
        ("conv.out_proj", "conv2d_out_proj", &[]),
        ("feed_forward.w1", "ffn_gate", &[]),
        ("feed_forward.w3", "ffn_up", &[]),
        ("feed_forward.w2", "ffn_down", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["vision_tower."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("patch_embed.weight", "patch_embd.weight", &[Op::Frame(0)]),
        ("patch_embed.weight", "patch_embd.weight.1", &[Op::Frame(1)]),
        ("patchifier.weight", "patch_embd.weight", &[Op::Frame(0)]),
        ("patchifier.weight", "patch_embd.weight.1", &[Op::Frame(1)]),
        ("embedding_norm", "embedding_norm", &[]),
    ]],
    is_complete: true,
};

/// The size of images says nothing, as there is no table of positions.
pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["lfm3_vl"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "lfm3vl",
    activation: Activation { key: "hidden_act", known: &[("silu", vit::SILU)] },
    defaults: &[
        ("image_size", 448.0),
        ("patch_size", 16.0),
        ("num_hidden_layers", 14.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 8.0),
        ("hidden_size", 1024.0),
        ("spatial_merge_size", 2.0),
        ("norm_eps", 1e-5),
    ],
    needs_preprocessor: true,
    requires: &[vit::PREPARED, vit::BICUBIC, REQUIRES],
    keys: &[KEYS, qwen_vl::PIXELS, vit::COLORS],
    parts: &[
        LAYERS,
        OUTSIDE,
        vit::projector(&[&[("layer_norm", "input_norm", &[]), ("linear_1", "0", &[]), ("linear_2", "2", &[])]]),
    ],
};
