//! PaddleOCR-VL.

use super::super::spec::{Activation, EncoderFamily, KeyRule, Part, Place, Requirement, Source};
use super::{qwen_vl, vit};
use crate::format::hugging_face::rules::Literal::{Number, Text};
use crate::media::MediaKind;

const KEYS: &[KeyRule] = &[("spatial_merge_size", Source::Size("spatial_merge_size"))];

const REQUIRES: &[Requirement] = &[
    Requirement::OneOf(Place::Encoder, "num_channels", &[Number(3.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_theta", &[Number(10_000.0)]),
    Requirement::OneOf(Place::Encoder, "rope_parameters.rope_type", &[Text("axial")]),
    Requirement::OneOf(Place::Preprocessor, "temporal_patch_size", &[Number(1.0)]),
    Requirement::OfEncoder(Place::Preprocessor, "patch_size", "patch_size"),
    Requirement::OfEncoder(Place::Preprocessor, "merge_size", "spatial_merge_size"),
];

const LAYERS: Part = Part { stored: &["visual.vision_model.encoder.layers.*."], ..vit::LAYERS };

const OUTSIDE: Part = Part { stored: &["visual.vision_model."], ..vit::OUTSIDE };

const PROJECTOR: Part = Part {
    stored: &["mlp_AR.", "projector."],
    target: "mm.",
    numbers: None,
    rules: &[&[("pre_norm", "input_norm", &[]), ("linear_1", "1", &[]), ("linear_2", "2", &[])]],
    is_complete: true,
};

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["paddleocr_vl"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "paddleocr",
    activation: Activation { key: "hidden_act", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    defaults: &[
        ("patch_size", 14.0),
        ("spatial_merge_size", 2.0),
        ("image_size", 384.0),
        ("hidden_size", 1152.0),
        ("intermediate_size", 4304.0),
        ("num_hidden_layers", 27.0),
        ("num_attention_heads", 16.0),
        ("layer_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[vit::PREPARED, vit::BICUBIC, REQUIRES],
    keys: &[vit::SIZES, KEYS, qwen_vl::PIXELS, vit::COLORS],
    parts: &[LAYERS, OUTSIDE, PROJECTOR],
};
