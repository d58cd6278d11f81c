//! BERT and the encoders that are built like it: every row sees all rows of its text, learnt embeddings of positions, layer norms
//! after the residual is added, biases.
//!
//! Source: Devlin et al. 2018, "BERT"; Conneau et al. 2019, "Unsupervised Cross-lingual Representation Learning at Scale".

use super::family::{
    AttentionSpec, Direction, EmbeddingNorm, Family, FeedForward, NormKind, Norms, Output, Pointwise, Rotation,
};

pub(super) const FAMILY: Family = Family {
    architecture: "bert",
    models: "BERT, RoBERTa and XLM-RoBERTa: MiniLM, BGE, GTE, E5, Arctic Embed",
    embedding_norm: EmbeddingNorm::Stored,
    output: Output::Nothing,
    norm: NormKind::Layer,
    norms: Norms::AfterSum,
    attention: AttentionSpec { rotation: Rotation::Never, direction: Direction::BothWays, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    ..Family::PLAIN
};
