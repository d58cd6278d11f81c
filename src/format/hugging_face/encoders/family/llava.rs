//! LLaVA 1.5.

use super::super::spec::{Activation, EncoderFamily, Place, Requirement, Source};
use super::vit;
use crate::format::hugging_face::rules::Literal::Text;
use crate::format::hugging_face::rules::Rule;
use crate::media::MediaKind;

/// The two matrices of its projector, with a GELU between them.
pub(super) const GELU_BETWEEN: Requirement = Requirement::OneOf(Place::Model, "projector_hidden_act", &[Text("gelu")]);

const PROJECTOR: &[Rule] = &[("linear_1", "0", &[]), ("linear_2", "2", &[])];

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["llava"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "mlp",
    activation: Activation { key: "hidden_act", known: &[("quick_gelu", None), ("gelu", vit::GELU)] },
    defaults: &[
        ("hidden_size", 1024.0),
        ("intermediate_size", 4096.0),
        ("num_hidden_layers", 24.0),
        ("num_attention_heads", 16.0),
        ("image_size", 336.0),
        ("patch_size", 14.0),
        ("layer_norm_eps", 1e-5),
    ],
    needs_preprocessor: true,
    requires: &[
        vit::PREPARED,
        vit::BICUBIC,
        &[GELU_BETWEEN, Requirement::OneOf(Place::Model, "vision_feature_select_strategy", &[Text("default")])],
    ],
    keys: &[
        vit::SIZES,
        vit::COLORS,
        &[
            ("projector.scale_factor", Source::Fixed(1)),
            ("feature_layer", Source::FeatureLayer(-2)),
            ("image_aspect_ratio", Source::AspectRatio),
        ],
    ],
    parts: &[vit::LAYERS, vit::OUTSIDE, vit::projector(&[PROJECTOR])],
};
