//! Qwen 2 VL, 2.5 VL, 3 VL and 3.5, EXAONE 4.5, and Ling 3 VL. Their kernels of patches cover two frames; those of an image are alike.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Prepared, Requirement, Source,
};
use super::vit;
use crate::format::hugging_face::rules::Literal::{Bool, Number};
use crate::format::hugging_face::rules::{Op, Rule};
use crate::media::MediaKind;

const KEYS: &[KeyRule] = &[
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("depth")),
    (HEAD_COUNT, Source::Size("num_heads")),
    ("spatial_merge_size", Source::Size("spatial_merge_size")),
    ("attention.layer_norm_epsilon", Source::Number("layer_norm_eps")),
];

/// The limits on pixels under their old and their new names, else those of configs without them.
pub(super) const PIXELS: &[KeyRule] = &[
    (
        "image_min_pixels",
        Source::Prepared(Prepared {
            keys: &["min_pixels", "size.shortest_edge", "size.min_pixels"],
            default: Some(56 * 56),
            most: None,
        }),
    ),
    (
        "image_max_pixels",
        Source::Prepared(Prepared {
            keys: &["max_pixels", "size.longest_edge", "size.max_pixels"],
            default: Some(1280 * 28 * 28),
            most: None,
        }),
    ),
];

pub(super) const REQUIRES: &[Requirement] = &[
    Requirement::OneOf(Place::Encoder, "temporal_patch_size", &[Number(2.0)]),
    Requirement::OneOf(Place::Encoder, "in_channels", &[Number(3.0)]),
    Requirement::OneOf(Place::Encoder, "in_chans", &[Number(3.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_theta", &[Number(10_000.0)]),
    Requirement::OneOf(Place::Preprocessor, "temporal_patch_size", &[Number(2.0)]),
    Requirement::OfEncoder(Place::Preprocessor, "patch_size", "patch_size"),
    Requirement::OfEncoder(Place::Preprocessor, "merge_size", "spatial_merge_size"),
];

/// The epsilon is the same in every model.
const DEFAULTS: &[(&str, f64)] =
    &[("patch_size", 14.0), ("spatial_merge_size", 2.0), ("image_size", 560.0), ("layer_norm_eps", 1e-6)];

pub(super) const LAYERS: Part = Part {
    stored: &["visual.blocks.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("norm1", "ln1", &[]),
        ("norm2", "ln2", &[]),
        ("attn.qkv", "attn_qkv", &[]),
        ("attn.proj", "attn_out", &[]),
        ("mlp.fc1", "ffn_up", &[]),
        ("mlp.fc2", "ffn_down", &[]),
        ("mlp.linear_fc1", "ffn_up", &[]),
        ("mlp.linear_fc2", "ffn_down", &[]),
        ("mlp.gate_proj", "ffn_gate", &[]),
        ("mlp.up_proj", "ffn_up", &[]),
        ("mlp.down_proj", "ffn_down", &[]),
    ]],
    is_complete: true,
};

/// The two frames are two kernels in a GGUF file.
pub(super) const OUTSIDE: Part = Part {
    stored: &["visual."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("patch_embed.proj.weight", "patch_embd.weight", &[Op::Half { part: 0, axis: 2 }]),
        ("patch_embed.proj.weight", "patch_embd.weight.1", &[Op::Half { part: 1, axis: 2 }]),
        ("patch_embed.proj.bias", "patch_embd.bias", &[]),
        ("pos_embed", "position_embd", &[]),
        ("merger.ln_q", "post_ln", &[]),
        ("merger.norm", "post_ln", &[]),
    ]],
    is_complete: false,
};

/// What turns merged rows into embedding rows.
pub(super) const PROJECTOR: Part = Part {
    stored: &["visual.merger."],
    target: "mm.",
    numbers: None,
    rules: &[&[("mlp.0", "0", &[]), ("mlp.2", "2", &[]), ("linear_fc1", "0", &[]), ("linear_fc2", "2", &[])]],
    is_complete: false,
};

/// The projectors of deep layers are numbered one after the other, and in a GGUF file by their layers.
const DEEP: Part = Part {
    stored: &["visual.deepstack_merger_list.*."],
    target: "v.deepstack.*.",
    numbers: Some(DEEP_LAYERS),
    rules: &[DEEP_RULES],
    is_complete: true,
};

const DEEP_RULES: &[Rule] = &[("norm", "norm", &[]), ("linear_fc1", "fc1", &[]), ("linear_fc2", "fc2", &[])];

const DEEP_LAYERS: &str = "deepstack_visual_indexes";

const QWEN2_5_SIZES: &[KeyRule] = &[
    ("image_size", Source::Size("image_size")),
    ("embedding_length", Source::Size("hidden_size")),
    ("window_size", Source::Size("window_size")),
    ("n_wa_pattern", Source::FullLayers("fullatt_block_indexes")),
];

/// The table of positions is that of a square.
const QWEN3_SIZES: &[KeyRule] = &[
    ("image_size", Source::SideOfPatches("num_position_embeddings")),
    ("embedding_length", Source::Size("hidden_size")),
];

pub(super) const QWEN2: EncoderFamily = EncoderFamily {
    model_types: &["qwen2_vl"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "qwen2vl_merger",
    activation: Activation { key: "hidden_act", known: &[("quick_gelu", None)] },
    defaults: DEFAULTS,
    needs_preprocessor: true,
    requires: &[vit::PREPARED, vit::BICUBIC, REQUIRES],
    keys: &[
        KEYS,
        PIXELS,
        vit::COLORS,
        &[("image_size", Source::Size("image_size")), ("embedding_length", Source::Size("embed_dim"))],
    ],
    parts: &[LAYERS, OUTSIDE, PROJECTOR],
};

pub(super) const QWEN2_5: EncoderFamily = EncoderFamily {
    model_types: &["qwen2_5_vl"],
    projector: "qwen2.5vl_merger",
    activation: Activation { key: "hidden_act", known: &[("silu", vit::SILU)] },
    keys: &[KEYS, PIXELS, vit::COLORS, QWEN2_5_SIZES],
    ..QWEN2
};

/// As Qwen 2.5 VL, with fewer heads of keys and values.
pub(super) const EXAONE4_5: EncoderFamily = EncoderFamily {
    model_types: &["exaone4_5"],
    projector: "exaone4_5",
    defaults: &[
        ("patch_size", 14.0),
        ("spatial_merge_size", 2.0),
        ("image_size", 560.0),
        ("layer_norm_eps", 1e-6),
        ("num_key_value_heads", 8.0),
    ],
    keys: &[
        KEYS,
        PIXELS,
        vit::COLORS,
        QWEN2_5_SIZES,
        &[("attention.head_count_kv", Source::Size("num_key_value_heads"))],
    ],
    ..QWEN2_5
};

pub(super) const QWEN3: EncoderFamily = EncoderFamily {
    model_types: &["qwen3_vl", "qwen3_vl_moe"],
    keys: &[KEYS, PIXELS, QWEN3_SIZES, vit::COLORS, &[("is_deepstack_layers", Source::Marks(DEEP_LAYERS))]],
    parts: &[LAYERS, DEEP, OUTSIDE, PROJECTOR],
    ..QWEN3_5
};

/// As Qwen 3 VL, without deep layers.
pub(super) const QWEN3_5: EncoderFamily = EncoderFamily {
    model_types: &["qwen3_5", "qwen3_5_moe"],
    projector: "qwen3vl_merger",
    activation: Activation { key: "hidden_act", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    keys: &[KEYS, PIXELS, QWEN3_SIZES, vit::COLORS],
    ..QWEN2
};

/// As Qwen 3.5, with the matrices of the projector outside the tower.
pub(super) const LING3: EncoderFamily = EncoderFamily {
    model_types: &["bailing_moe_v3_vl"],
    projector: "ling3vl",
    requires: &[
        vit::PREPARED,
        vit::BICUBIC,
        REQUIRES,
        &[
            Requirement::OneOf(Place::Encoder, "disable_merger_proj", &[Bool(true)]),
            Requirement::OneOf(Place::Model, "norm_query_embeds", &[Bool(false)]),
        ],
    ],
    parts: &[LAYERS, LING3_MERGER, OUTSIDE, LING3_PROJECTOR],
    ..QWEN3_5
};

const LING3_MERGER: Part = Part {
    stored: &["visual.merger."],
    target: "mm.",
    numbers: None,
    rules: &[&[("norm", "input_norm", &[])]],
    is_complete: true,
};

const LING3_PROJECTOR: Part = Part {
    stored: &["linear_proj."],
    target: "mm.",
    numbers: None,
    rules: &[&[("0", "0", &[]), ("2", "2", &[])]],
    is_complete: true,
};
