//! Drafts: tokens that are verified several at a time.

use std::time::Duration;

use cuelight_engine::engine::{RowSamplingParams, TokenId};

use super::prefix_scope::PrefixScope;
use super::request::RequestId;

/// Where the tokens of a draft come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSource {
    /// An earlier part of the prompt or the answer.
    Lookup,
    /// The answer that the client expects.
    Prediction,
    /// The draft model.
    Model,
    /// A recent answer to another request.
    Recent,
}

impl DraftSource {
    /// The names of all sources, in the order of the variants.
    pub const NAMES: [&str; 4] = ["ngram", "prediction", "draft_model", "recent_answer"];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Hidden values of the model for consecutive positions of a sequence, with which a layer of the model drafts more tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct HiddenShare {
    /// The request.
    pub id: RequestId,
    /// The first position.
    pub first_position: usize,
    /// [positions, width].
    pub values: Vec<f32>,
}

/// A request for a draft by the draft model.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRequest {
    /// The request whose answer is continued.
    pub id: RequestId,
    /// Its prompt and answer so far.
    pub tokens: Vec<TokenId>,
    /// The draft model shares what it computed only between requests of the same scope.
    pub scope: PrefixScope,
    /// How each token of the draft is sampled: with the random number that the sampler will use for that token, so that both
    /// often choose the same one. They limit its length. Without any, the draft model only computes `tokens`.
    pub draws: Vec<RowSamplingParams>,
}

/// The draft model's answer to a [`DraftRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftReply {
    /// The request.
    pub id: RequestId,
    /// Number of tokens that the draft follows.
    pub length: usize,
    /// The draft. `None` when the draft model cannot continue so long a text.
    pub tokens: Option<Vec<TokenId>>,
    /// Time per token of the draft; `None` for a reply whose time says nothing about the next one.
    pub token_time: Option<Duration>,
}
