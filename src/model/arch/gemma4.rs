//! Gemma 4: norms before and after each half of a layer and on the heads; five windowed
//! layers, then one without a window, whose heads have another size and whose values are its keys. Experts, where a model has
//! them, run in parallel to the dense feed-forward. The small models have an input of its own for each layer, and their last
//! layers read the keys and values of earlier ones.
//!
//! Source: Gemma Team 2026, "Gemma 4" and its reference code.

use super::family::{
    Activation, AttentionScale, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, FeedForward, MediaRows, Norms,
    QkNorm, QkNormKind, RoutingSpec, Values, WindowedRope, Windows,
};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma4",
    models: "Gemma 4",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    norms: Norms::BeforeAndAfter,
    attention: AttentionSpec {
        qk_norm: QkNorm::Always(QkNormKind::Heads),
        scale: AttentionScale::One,
        windows: Windows::AllButEvery(6),
        media_rows: MediaRows::SeeEachOtherInWindows,
        windowed_rope: WindowedRope::Unscaled(Some(10_000.0)),
        values: Values::Normed,
        ..AttentionSpec::PLAIN
    },
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    routing: Some(RoutingSpec { placement: ExpertPlacement::Parallel, ..RoutingSpec::SOFTMAX }),
    ..Family::PLAIN
};
