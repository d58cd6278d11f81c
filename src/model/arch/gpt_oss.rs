//! gpt-oss: every layer a mixture of experts with biases and a clamped activation, every other layer with a window, and a sink
//! for each head.
//!
//! Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card". The softmax over the chosen experts' logits is that over all,
//! made to add up to 1 again.

use super::{
    Activation, AttentionSpec, EmbeddingScale, ExpertStance, Family, Mixer, Norms, RouteWeighting, RoutingSpec,
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
        stance: ExpertStance::Instead,
    }),
};
