//! gpt-oss: experts with biases and a clamped activation in every layer, a window in every other layer, and an attention sink
//! per head.
//!
//! Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card". The softmax over the chosen experts' logits equals the softmax
//! over all of them, scaled to sum to 1.

use super::family::{Activation, AttentionSpec, Family, FeedForward, Norms, RoutingSpec, Windows, YarnRamp};

pub(super) const FAMILY: Family = Family {
    architecture: "gpt-oss",
    models: "gpt-oss",
    norms: Norms::BeforeButNamedAfter,
    attention: AttentionSpec { windows: Windows::AllButEvery(2), yarn_ramp: YarnRamp::Exact, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Gated(Activation::ClampedSwiglu),
    routing: Some(RoutingSpec::SOFTMAX),
    ..Family::PLAIN
};
