//! Whisper (decoder): attention to the rows of the audio encoder between attention and feed-forward; learnt embeddings of
//! positions, layer norms and biases. Each of the three is a layer of its own here.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision".

use super::family::{AttentionSpec, Family, FeedForward, NormKind, Norms, Pointwise, Rotation, Windows};

pub(super) const FAMILY: Family = Family {
    architecture: "whisper",
    models: "Whisper",
    norm: NormKind::Layer,
    norms: Norms::BeforeOnlyHalf,
    attention: AttentionSpec { rotation: Rotation::Never, windows: Windows::EncoderOrText, ..AttentionSpec::PLAIN },
    feed_forward: FeedForward::Ungated(Pointwise::Gelu),
    ..Family::PLAIN
};
