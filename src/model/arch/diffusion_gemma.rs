//! DiffusionGemma (text): the layers of Gemma 4 with experts. It generates blocks of tokens: the rows of a block see each other, and
//! their input has the embeddings that the step before expected. Rows of the prompt and of finished blocks are causal, and each
//! layer has another factor for them.
//!
//! Source: Google 2026, "DiffusionGemma", its class in transformers, and llama.cpp's pull request 24427.

use super::family::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, FeedForward, Generation, Norms,
    QkNorm, QkNormKind, RoutingSpec, Values, WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "diffusion-gemma",
    models: "DiffusionGemma (text)",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    generation: Generation::Blocks,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        scale: AttentionScale::One,
        windows: Windows::AllButEvery(6),
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        values: Values::Normed,
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    routing: Some(RoutingSpec { placement: ExpertPlacement::Parallel, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
