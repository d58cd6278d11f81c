//! Gemma 4 (text, without embeddings for each layer): norms on both sides and on the heads, five layers with a window to one
//! without, whose heads are of another size and whose values are its keys; where there are experts, they stand beside the dense
//! feed-forward.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

use super::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, ExpertStance, Family, Mixer, Norms, QkNorm,
    RouteWeighting, RoutingSpec, Scoring, Values, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma4",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always,
        scale: AttentionScale::One,
        windows: Windows::AllButEvery(6),
        rope_base_windowed: Some(10_000.0),
        values: Values::Normed,
        ..AttentionSpec::PLAIN
    },
    activation: Activation::GeluTanh,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: true,
        weighting: RouteWeighting::Output,
        stance: ExpertStance::Beside,
    }),
};
