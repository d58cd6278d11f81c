//! Logits to a token.

use crate::engine::TokenId;

/// How the next token is chosen from the logits. The default is the model's plain distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022); 1 keeps all.
    pub typical_p: f32,
    /// Divides (positive) or multiplies (negative) the logits of tokens already seen, prompt included; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens already generated.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Makes the random choice repeatable; `None` draws a fresh seed.
    pub seed: Option<u64>,
}
