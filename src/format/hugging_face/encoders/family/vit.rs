//! What the vision towers of several families have alike.

use super::super::spec::{BLOCK_COUNT, HEAD_COUNT, KeyRule, Part, Place, Requirement, Source};
use crate::format::hugging_face::rules::Literal::{Bool, Number};
use crate::format::hugging_face::rules::Rule;

/// The key of a GGUF file for the exact GELU, or the GELU of the family.
pub(super) const GELU: Option<&str> = Some("clip.use_gelu");
/// The key of a GGUF file for SiLU.
pub(super) const SILU: Option<&str> = Some("clip.use_silu");

/// How images are prepared for every tower.
pub(super) const PREPARED: &[Requirement] = &[
    Requirement::OneOf(Place::Preprocessor, "do_resize", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "do_rescale", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "do_normalize", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "rescale_factor", &[Number(1.0 / 255.0)]),
];

/// As [`Requirement`], how Pillow numbers the filter that is bicubic.
pub(super) const BICUBIC: &[Requirement] = &[Requirement::OneOf(Place::Preprocessor, "resample", &[Number(3.0)])];

pub(super) const COLORS: &[KeyRule] =
    &[("image_mean", Source::Colors("image_mean")), ("image_std", Source::Colors("image_std"))];

/// The sizes of most towers.
pub(super) const SIZES: &[KeyRule] = &[
    ("image_size", Source::Size("image_size")),
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    ("embedding_length", Source::Size("hidden_size")),
    ("feed_forward_length", Source::Size("intermediate_size")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
    ("attention.layer_norm_epsilon", Source::Number("layer_norm_eps")),
];

/// The layers of CLIP and SigLIP.
pub(super) const LAYERS: Part = Part {
    stored: &[
        "vision_tower.vision_model.encoder.layers.*.",
        "vision_tower.encoder.layers.*.",
        "vision_model.encoder.layers.*.",
    ],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("layer_norm1", "ln1", &[]),
        ("layer_norm2", "ln2", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.out_proj", "attn_out", &[]),
        ("mlp.fc1", "ffn_up", &[]),
        ("mlp.fc2", "ffn_down", &[]),
    ]],
    is_complete: true,
};

/// What CLIP and SigLIP have outside layers. The last norm, the pooling and the positions' numbers of some are not needed.
pub(super) const OUTSIDE: Part = Part {
    stored: &["vision_tower.vision_model.", "vision_tower.", "vision_model."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("embeddings.patch_embedding", "patch_embd", &[]),
        ("embeddings.position_embedding", "position_embd", &[]),
        ("embeddings.class_embedding", "class_embd", &[]),
        ("pre_layrnorm", "pre_ln", &[]),
        ("post_layernorm", "post_ln", &[]),
    ]],
    is_complete: false,
};

/// A projector under one of the usual names.
pub(super) const fn projector(rules: &'static [&'static [Rule]]) -> Part {
    Part { stored: &["multi_modal_projector.", "connector."], target: "mm.", numbers: None, rules, is_complete: true }
}
