//! LFM2-VL.

use super::super::spec::{
    Activation, BLOCK_COUNT, EncoderFamily, HEAD_COUNT, KeyRule, Part, Place, Prepared, Requirement, Source,
};
use super::{llava, vit};
use crate::format::hugging_face::rules::Literal::{Bool, Number};
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

const MERGE: (Place, &str, u32) = (Place::Model, "downsample_factor", 2);

const KEYS: &[KeyRule] = &[
    ("image_size", Source::SideOfPatches("num_patches")),
    ("patch_size", Source::Size("patch_size")),
    (BLOCK_COUNT, Source::Size("num_hidden_layers")),
    ("embedding_length", Source::Size("hidden_size")),
    (HEAD_COUNT, Source::Size("num_attention_heads")),
    ("attention.layer_norm_epsilon", Source::Number("layer_norm_eps")),
    ("projector.scale_factor", Source::OfModel(MERGE.1, MERGE.2)),
    ("image_min_pixels", Source::PixelsOfRows { rows: ("min_image_tokens", 64), patch: "patch_size", merge: MERGE }),
    ("image_max_pixels", Source::PixelsOfRows { rows: ("max_image_tokens", 256), patch: "patch_size", merge: MERGE }),
    ("preproc_image_size", prepared(&["tile_size"], 512)),
    ("preproc_min_tiles", prepared(&["min_tiles"], 2)),
    ("preproc_max_tiles", prepared(&["max_tiles"], 10)),
];

/// A size of the preprocessor, or this one.
const fn prepared(keys: &'static [&'static str], default: u32) -> Source {
    Source::Prepared(Prepared { keys, default: Some(default), most: None })
}

const REQUIRES: &[Requirement] = &[
    llava::GELU_BETWEEN,
    Requirement::OneOf(Place::Model, "vision_feature_layer", &[Number(-1.0)]),
    Requirement::OneOf(Place::Preprocessor, "resample", &[Number(2.0)]),
    Requirement::OneOf(Place::Preprocessor, "do_image_splitting", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "use_thumbnail", &[Bool(true)]),
    Requirement::OneOf(Place::Preprocessor, "max_pixels_tolerance", &[Number(2.0)]),
    Requirement::OfEncoder(Place::Preprocessor, "encoder_patch_size", "patch_size"),
    Requirement::OneOf(Place::Preprocessor, "downsample_factor", &[Number(2.0)]),
    Requirement::OneOf(Place::Model, "downsample_factor", &[Number(2.0)]),
];

const OUTSIDE: Part = Part {
    stored: &["vision_tower.vision_model.", "vision_tower."],
    target: "v.",
    numbers: None,
    rules: &[&[
        ("embeddings.patch_embedding.weight", "patch_embd.weight", &[Op::ColorByColor]),
        ("embeddings.patch_embedding.bias", "patch_embd.bias", &[]),
        ("embeddings.position_embedding", "position_embd", &[]),
        ("post_layernorm", "post_ln", &[]),
    ]],
    is_complete: false,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["lfm2_vl"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "lfm2",
    activation: Activation { key: "hidden_act", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    defaults: &[
        ("hidden_size", 768.0),
        ("num_hidden_layers", 12.0),
        ("num_attention_heads", 12.0),
        ("patch_size", 16.0),
        ("num_patches", 256.0),
        ("layer_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[vit::PREPARED, REQUIRES],
    keys: &[KEYS, vit::COLORS],
    parts: &[
        vit::LAYERS,
        OUTSIDE,
        vit::projector(&[&[("layer_norm", "input_norm", &[]), ("linear_1", "1", &[]), ("linear_2", "2", &[])]]),
    ],
};
