//! Pixtral and Mistral Small 3.1, whose towers differ in the squares of patches that become one row.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Prepared, Requirement, Source,
};
use super::{llava, vit};
use crate::format::hugging_face::rules::Literal::{Number, Text};
use crate::format::hugging_face::rules::{Heads, Op};
use crate::media::MediaKind;

const KEYS: &[KeyRule] = &[
    ("image_size", Source::Size("image_size")),
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    ("embedding_length", Source::Size("hidden_size")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
    ("attention.layer_norm_epsilon", Source::Number("layer_norm_eps")),
    ("feature_layer", Source::FeatureLayer(-1)),
    (
        "preproc_image_size",
        Source::Prepared(Prepared { keys: &["size.longest_edge"], default: None, most: Some("image_size") }),
    ),
];

const REQUIRES: &[Requirement] = &[
    llava::GELU_BETWEEN,
    Requirement::OneOf(Place::Encoder, "rope_theta", &[Number(10_000.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_theta", &[Number(10_000.0)]),
];

const LAYERS: Part = Part {
    stored: &["vision_tower.transformer.layers.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("attention_norm", "ln1", &[]),
        ("ffn_norm", "ln2", &[]),
        ("attention.q_proj", "attn_q", &[Op::RotaryRows(Heads::Query)]),
        ("attention.k_proj", "attn_k", &[Op::RotaryRows(Heads::Key)]),
        ("attention.v_proj", "attn_v", &[]),
        ("attention.o_proj", "attn_out", &[]),
        ("feed_forward.gate_proj", "ffn_gate", &[]),
        ("feed_forward.up_proj", "ffn_up", &[]),
        ("feed_forward.down_proj", "ffn_down", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["vision_tower."],
    target: "v.",
    numbers: None,
    rules: &[&[("patch_conv", "patch_embd", &[]), ("ln_pre", "pre_ln", &[])]],
    is_complete: false,
};

const PROJECTOR: Part = vit::projector(&[&[
    ("norm", "input_norm", &[]),
    ("patch_merger.merging_layer", "patch_merger", &[]),
    ("linear_1", "1", &[]),
    ("linear_2", "2", &[]),
]]);

/// Patches become rows one by one.
pub(super) const OF_LLAVA: EncoderFamily = EncoderFamily {
    model_types: &["llava"],
    encoder_type: Some("pixtral"),
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "pixtral",
    activation: Activation { key: "hidden_act", known: &[("gelu", vit::GELU), ("silu", vit::SILU)] },
    defaults: &[
        ("hidden_size", 1024.0),
        ("num_hidden_layers", 24.0),
        ("num_attention_heads", 16.0),
        ("image_size", 1024.0),
        ("patch_size", 16.0),
        ("layer_norm_eps", 1e-5),
    ],
    needs_preprocessor: true,
    requires: &[
        vit::PREPARED,
        vit::BICUBIC,
        REQUIRES,
        &[Requirement::OneOf(Place::Model, "vision_feature_select_strategy", &[Text("full")])],
    ],
    keys: &[KEYS, vit::COLORS, &[("spatial_merge_size", Source::Fixed(1))]],
    parts: &[LAYERS, OUTSIDE, PROJECTOR],
};

/// A square of patches becomes one row.
pub(super) const OF_MISTRAL3: EncoderFamily = EncoderFamily {
    model_types: &["mistral3"],
    encoder_type: None,
    requires: &[
        vit::PREPARED,
        vit::BICUBIC,
        REQUIRES,
        // The norm of the projector has the epsilon of the text model, which is that of the tower in every published model.
        &[Requirement::OneOf(Place::Model, "text_config.rms_norm_eps", &[Number(1e-5)])],
    ],
    keys: &[KEYS, vit::COLORS, &[("spatial_merge_size", Source::OfModel("spatial_merge_size", 2))]],
    ..OF_LLAVA
};
