//! Gemma 2: norms on both sides, every other layer with a window, soft caps on scores and logits.
//!
//! Source: Gemma Team 2024, "Gemma 2". GGUF files hold the norms' weights with 1 already added. The 27B model (46 layers)
//! scales scores by hidden size over heads.

use super::{Activation, AttentionScale, AttentionSpec, EmbeddingScale, Family, Mixer, Norms, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma2",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        scale: AttentionScale::HeadDimBut { n_layers: 46 },
        windows: Windows::AllButEvery(2),
        ..AttentionSpec::PLAIN
    },
    activation: Activation::GeluTanh,
    routing: None,
};
