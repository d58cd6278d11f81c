//! Gemma 3.

use super::super::spec::{Activation, EncoderFamily, Source};
use super::vit;
use crate::format::hugging_face::rules::Op;
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["gemma3"],
    encoder_type: None,
    kind: MediaKind::Image,
    is_in_root: false,
    projector: "gemma3",
    activation: Activation { key: "hidden_act", known: &[("gelu_pytorch_tanh", vit::GELU)] },
    defaults: &[("layer_norm_eps", 1e-6)],
    needs_preprocessor: true,
    requires: &[vit::PREPARED],
    keys: &[vit::SIZES, vit::COLORS, &[("projector.scale_factor", Source::SideByRoot("mm_tokens_per_image", 256.0))]],
    parts: &[
        vit::LAYERS,
        vit::OUTSIDE,
        vit::projector(&[&[
            ("mm_soft_emb_norm", "soft_emb_norm", &[Op::AddOne]),
            ("mm_input_projection_weight", "input_projection.weight", &[]),
        ]]),
    ],
};
