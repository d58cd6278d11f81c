//! InternVL 2.5 and 3.

use super::super::spec::{Activation, EncoderFamily, Part, Prepared, Source};
use super::vit;
use crate::media::MediaKind;

const LAYERS: Part = Part {
    stored: &["vision_tower.encoder.layer.*."],
    target: "v.blk.*.",
    numbers: None,
    rules: &[&[
        ("layernorm_before", "ln1", &[]),
        ("layernorm_after", "ln2", &[]),
        ("attention.q_proj", "attn_q", &[]),
        ("attention.k_proj", "attn_k", &[]),
        ("attention.v_proj", "attn_v", &[]),
        ("attention.q_norm", "attn_q_norm", &[]),
        ("attention.k_norm", "attn_k_norm", &[]),
        ("attention.projection_layer", "attn_out", &[]),
        ("lambda_1", "ls1.weight", &[]),
        ("lambda_2", "ls2.weight", &[]),
        ("mlp.fc1", "ffn_up", &[]),
        ("mlp.fc2", "ffn_down", &[]),
    ]],
    is_complete: true,
};

const OUTSIDE: Part = Part {
    stored: &["vision_tower."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("embeddings.patch_embeddings.projection", "patch_embd", &[]),
        ("embeddings.position_embeddings", "position_embd.weight", &[]),
        ("embeddings.cls_token", "class_embd", &[]),
        ("layernorm", "post_ln", &[]),
    ]],
    is_complete: false,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["internvl"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "internvl",
    activation: Activation { key: "hidden_act", known: &[("gelu", vit::GELU)] },
    defaults: &[
        ("hidden_size", 1024.0),
        ("intermediate_size", 4096.0),
        ("num_hidden_layers", 24.0),
        ("num_attention_heads", 16.0),
        ("image_size", 448.0),
        ("patch_size", 14.0),
        ("layer_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[vit::PREPARED],
    keys: &[
        vit::SIZES,
        vit::COLORS,
        &[
            ("projector.scale_factor", Source::OneBy("downsample_ratio", 0.5)),
            ("preproc_max_tiles", Source::Prepared(Prepared { keys: &["max_patches"], default: None, most: None })),
        ],
    ],
    parts: &[
        LAYERS,
        OUTSIDE,
        vit::projector(&[&[
            ("layer_norm", "model.mlp.0", &[]),
            ("linear_1", "model.mlp.1", &[]),
            ("linear_2", "model.mlp.3", &[]),
        ]]),
    ],
};
