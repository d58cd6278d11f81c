//! Voxtral. As many neighbouring rows become one as make the width of the feed-forwards.

use super::super::spec::{BLOCK_COUNT, EncoderFamily, HEAD_COUNT, Place, Requirement, Source};
use super::whisper;
use crate::format::hugging_face::rules::Literal::Text;
use crate::media::MediaKind;

pub(super) const FAMILY: EncoderFamily = EncoderFamily {
    model_types: &["voxtral"],
    encoder_type: None,
    kind: MediaKind::Audio,
    is_in_root: false,
    projector: "voxtral",
    activation: whisper::ACTIVATION,
    defaults: whisper::DEFAULTS,
    needs_preprocessor: false,
    requires: &[whisper::PREPARED, &[Requirement::OneOf(Place::Model, "projector_hidden_act", &[Text("gelu")])]],
    keys: &[
        whisper::COMMON,
        &[
            (BLOCK_COUNT, Source::Size("num_hidden_layers")),
            ("embedding_length", Source::Size("hidden_size")),
            (HEAD_COUNT, Source::Size("num_attention_heads")),
            ("projector.stack_factor", Source::Quotient("intermediate_size", "hidden_size")),
        ],
    ],
    parts: &[
        whisper::LAYERS,
        whisper::OUTSIDE,
        whisper::projector(&[&[("linear_1", "mlp.1", &[]), ("linear_2", "mlp.2", &[])]]),
    ],
};
