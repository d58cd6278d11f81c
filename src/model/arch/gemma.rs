//! Gemma 1: Llama's layers with a GELU gate and scaled embeddings.
//!
//! Source: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology". GGUF files store norm weights with 1
//! already added.

use super::family::{Activation, EmbeddingScale, Family, FeedForward};

pub(super) const FAMILY: Family = Family {
    architecture: "gemma",
    models: "Gemma 1, CodeGemma",
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
    feed_forward: FeedForward::Gated(Activation::GeluTanh),
    ..Family::PLAIN
};
