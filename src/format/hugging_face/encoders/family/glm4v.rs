//! GLM 4.1V, 4.5V and 4.6V, GLM-OCR, GLM 5.3 Flash. Their kernels of patches cover two frames; those of an image are alike.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Prepared, Requirement, Source,
};
use super::{qwen_vl, vit};
use crate::format::hugging_face::rules::Literal::Number;
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

const KEYS: &[KeyRule] = &[
    ("image_size", Source::Size("image_size")),
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("depth")),
    (HEAD_COUNT, Source::Size("num_heads")),
    ("embedding_length", Source::Size("hidden_size")),
    ("spatial_merge_size", Source::Size("spatial_merge_size")),
    ("attention.layer_norm_epsilon", Source::Number("rms_norm_eps")),
];

/// The limits on pixels are those of two frames.
const PIXELS: &[KeyRule] = &[
    ("image_min_pixels", limit(&["size.shortest_edge", "min_pixels"], 112 * 112)),
    ("image_max_pixels", limit(&["size.longest_edge", "max_pixels"], 28 * 28 * 15_000)),
];

const fn limit(keys: &'static [&'static str], default: u32) -> Source {
    Source::PreparedFrames(Prepared { keys, default: Some(default), most: None }, 2)
}

/// The limits are numbers of embedding rows.
const GLM5_KEYS: &[KeyRule] = &[
    ("swiglu_clamp", Source::Number("swiglu_limit")),
    ("image_min_pixels", Source::PixelsOfRows { rows: ("min_image_tokens", 16), patch: "patch_size", merge: MERGE }),
    ("image_max_pixels", Source::PixelsOfRows { rows: ("max_image_tokens", 8000), patch: "patch_size", merge: MERGE }),
];

const MERGE: (Place, &str, u32) = (Place::Encoder, "spatial_merge_size", 2);

const LAYERS: Part = Part {
    stored: &["visual.blocks.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("norm1", "ln1", &[]),
        ("norm2", "ln2", &[]),
        ("attn.qkv", "attn_qkv", &[]),
        ("attn.proj", "attn_out", &[]),
        ("attn.q_norm", "attn_q_norm", &[]),
        ("attn.k_norm", "attn_k_norm", &[]),
        ("mlp.gate_proj", "ffn_gate", &[]),
        ("mlp.up_proj", "ffn_up", &[]),
        ("mlp.down_proj", "ffn_down", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["visual."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("patch_embed.proj.weight", "patch_embd.weight", &[Op::Half { part: 0, axis: 2 }]),
        ("patch_embed.proj.weight", "patch_embd.weight.1", &[Op::Half { part: 1, axis: 2 }]),
        ("patch_embed.proj.bias", "patch_embd.bias", &[]),
        ("post_conv_layernorm", "norm_embd", &[]),
        ("embeddings.position_embedding", "position_embd", &[]),
        ("post_layernorm", "post_ln", &[]),
    ]],
    is_complete: false,
};

const MERGER: Part = Part {
    stored: &["visual."],
    target: "mm.",
    numbers: None,
    rules: &[&[
        ("downsample", "patch_merger", &[]),
        ("merger.proj", "model.fc", &[]),
        ("merger.post_projection_norm", "post_norm", &[]),
        ("merger.gate_proj", "gate", &[]),
        ("merger.up_proj", "up", &[]),
        ("merger.down_proj", "down", &[]),
    ]],
    is_complete: false,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["glm4v", "glm4v_moe", "glm_ocr"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "glm4v",
    activation: Activation { key: "hidden_act", known: &[("silu", vit::SILU)] },
    defaults: &[("patch_size", 14.0), ("spatial_merge_size", 2.0), ("image_size", 336.0), ("rms_norm_eps", 1e-5)],
    needs_preprocessor: true,
    requires: &[vit::PREPARED, vit::BICUBIC, qwen_vl::REQUIRES],
    keys: &[KEYS, PIXELS, vit::COLORS],
    parts: &[LAYERS, OUTSIDE, MERGER],
};

pub(super) const GLM5: EncoderFamily = EncoderFamily {
    model_types: &["glm5_next"],
    projector: "glm5v",
    defaults: &[
        ("depth", 24.0),
        ("hidden_size", 1024.0),
        ("num_heads", 16.0),
        ("patch_size", 14.0),
        ("spatial_merge_size", 2.0),
        ("image_size", 336.0),
        ("rms_norm_eps", 1e-5),
        ("swiglu_limit", 10.0),
    ],
    requires: &[
        vit::PREPARED,
        vit::BICUBIC,
        qwen_vl::REQUIRES,
        &[Requirement::OneOf(Place::Preprocessor, "patch_expand_factor", &[Number(1.0)])],
    ],
    keys: &[KEYS, GLM5_KEYS, vit::COLORS],
    ..FAMILY
};
