//! Idefics 3, SmolVLM and SmolVLM 2.

use super::super::spec::{Activation, EncoderFamily, Prepared, Source};
use super::vit;
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["idefics3", "smolvlm"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "idefics3",
    activation: Activation { key: "hidden_act", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    defaults: &[
        ("hidden_size", 1152.0),
        ("intermediate_size", 3072.0),
        ("num_hidden_layers", 12.0),
        ("num_attention_heads", 16.0),
        ("patch_size", 32.0),
        ("layer_norm_eps", 1e-6),
    ],
    needs_preprocessor: true,
    requires: &[vit::PREPARED],
    keys: &[
        vit::SIZES,
        vit::COLORS,
        &[
            ("projector.scale_factor", Source::OfModel("scale_factor", 2)),
            (
                "preproc_image_size",
                Source::Prepared(Prepared { keys: &["size.longest_edge"], default: None, most: None }),
            ),
        ],
    ],
    parts: &[vit::LAYERS, vit::OUTSIDE, vit::projector(&[&[("modality_projection.proj", "model.fc", &[])]])],
};
