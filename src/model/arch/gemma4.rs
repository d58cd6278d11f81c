//! Gemma 4 (text, without per-layer embeddings): norms before and after each half of a layer and on the heads; five windowed
//! layers, then one without a window, whose heads have another size and whose values are its keys. Experts, where a model has
//! them, run in parallel to the dense feed-forward.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

use super::family::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, QkNorm,
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
        placement: ExpertPlacement::Parallel,
    }),
};
