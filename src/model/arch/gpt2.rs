//! GPT-2: learnt embeddings of positions instead of rotation, layer norms and biases everywhere, GELU without a gate.
//!
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

use super::family::{AttentionSpec, Family, FeedForward, NormKind, Pointwise, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "gpt2",
    models: "GPT-2, DistilGPT-2",
    norm: NormKind::Layer,
    attention: AttentionSpec { rotation: Rotation::Never, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::GeluTanh),
    ..Family::PLAIN
};
