//! gpt-oss: experts with biases and a clamped activation in every layer, a window in every other layer, and an attention sink
//! per head.
//!
//! Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card". The softmax over the chosen experts' logits equals the softmax
//! over all of them, scaled to sum to 1.

use super::family::{
    Activation, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, RouteWeighting, RoutingSpec,
    Scoring, Windows, YarnRamp,
};

pub(super) const FAMILY: Family = Family {
    architecture: "gpt-oss",
    embedding_scale: EmbeddingScale::One,
    norms: Norms::BeforeButNamedAfter,
    mixer: Mixer::GroupedQueryAttention,
    attention: AttentionSpec { windows: Windows::AllButEvery(2), yarn_ramp: YarnRamp::Exact, ..AttentionSpec::PLAIN },
    activation: Activation::ClampedSwiglu,
    routing: Some(RoutingSpec {
        scoring: Scoring::Softmax,
        renormalise: true,
        weighting: RouteWeighting::Output,
        placement: ExpertPlacement::Replace,
    }),
};
