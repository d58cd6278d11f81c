//! BLOOM: scores that fall with distance instead of rotation, a norm of the embeddings, layer norms and biases everywhere, GELU
//! without a gate.
//!
//! Source: BigScience Workshop 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model". Files lack the key of the
//! bias.

use super::family::{Alibi, AttentionSpec, EmbeddingNorm, Family, FeedForward, NormKind, Pointwise, Rotation};

pub(super) const FAMILY: Family = Family {
    architecture: "bloom",
    models: "BLOOM, BLOOMZ",
    embedding_norm: EmbeddingNorm::Stored,
    norm: NormKind::Layer,
    attention: AttentionSpec { rotation: Rotation::Never, alibi: Alibi::Always(8.0), ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::GeluTanh),
    ..Family::PLAIN
};
