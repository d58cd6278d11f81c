//! Generation requests and their events, shared by the API, the scheduler and the sampler.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::constraint::Constraint;
use cuelight_engine::embedding::Pooling;
use cuelight_engine::engine::{AdapterUse, TokenId};
pub use cuelight_engine::sample::{PartialSampling, PositionLogprobs, SamplingParams, TokenLogprob};
use serde::{Deserialize, Serialize};

use super::kv_transfer::KvTransfer;
use super::prefix_scope::{PrefixScope, ScopeAdapter};
use super::prompt_media::PromptMedia;
use super::stop_strings::StopStrings;

/// The number of a request, unique within a model's replicas. Numbers start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Maximum number of tokens that one step adds to an answer, except as a block.
pub const MAX_STEP_TOKENS: usize = 16;

/// One sequence to generate. An API call with `n > 1` becomes several requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationRequest {
    /// The tokens of the prompt, special tokens included. At least one.
    pub prompt: Vec<TokenId>,
    /// The media whose rows take the place of some of its tokens.
    pub media: PromptMedia,
    /// How the next token is sampled.
    pub sampling: SamplingParams,
    /// When generation ends.
    pub stop: StopConditions,
    /// Return the log-probability of each generated token and of this many alternatives.
    pub logprobs: Option<usize>,
    /// The alternatives to each generated token, instead of the most likely ones. Empty: the most likely ones.
    pub logprob_tokens: Vec<TokenId>,
    /// Return the log-probability and this many alternatives for the tokens of the prompt. The first token has none.
    pub prompt_logprobs: Option<usize>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Special tokens that stay in the text all the same, sorted.
    pub visible_tokens: Arc<[TokenId]>,
    /// The reasoning before the answer, to which stop strings and the constraint do not apply.
    pub reasoning: Option<ReasoningOptions>,
    /// What the answer has to match.
    pub constraint: Option<Constraint>,
    /// Lower values run first, as in vLLM. The default is 0.
    pub priority: i32,
    /// The client. Clients share the engine fairly. All requests without a client count as one client.
    pub client: Option<Arc<str>>,
    /// Requests share cached prefixes only with requests that have the same salt.
    pub cache_salt: Option<Arc<str>>,
    /// The adapter that changes the model.
    pub adapter: Option<AdapterUse>,
    /// Whether several of its tokens may be computed in a step.
    pub speculation: SpeculationOptions,
    /// Report how much of the prompt is computed.
    pub reports_progress: bool,
    /// What it has to do with the KV caches of other servers.
    pub kv_transfer: KvTransfer,
    /// The request is for the embedding of the prompt, made in this way. It generates no tokens: `stop.max_tokens` is 0.
    pub embedding: Option<Pooling>,
    /// The index of the first token of the second of two texts, if the prompt is two texts and the model is told.
    pub second_text: Option<usize>,
}

impl GenerationRequest {
    /// The prompts with which it shares cached prefixes.
    #[must_use]
    pub fn prefix_scope(&self) -> PrefixScope {
        PrefixScope { salt: self.cache_salt.clone(), adapter: self.adapter.as_ref().map(ScopeAdapter::from) }
    }

    /// The seed of the request's random draws. A request without a seed gets a random one on the first call.
    pub fn fix_seed(&mut self) -> u64 {
        *self.sampling.seed.get_or_insert_with(|| uuid::Uuid::new_v4().as_u64_pair().0)
    }
}

/// How several tokens of an answer are computed in a step. The text does not depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpeculationOptions {
    /// One token per step.
    pub is_off: bool,
    /// The answer that the client expects, or a text of which the answer contains large parts.
    pub prediction: Arc<[TokenId]>,
}

/// The reasoning that a model may write before an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningOptions {
    /// The prompt ends inside of it.
    pub is_open: bool,
    /// What begins it.
    pub start: Marker,
    /// What ends it.
    pub end: Marker,
    /// The index of the first token of `start` that begins no answer.
    pub distinct: usize,
    /// More reasoning may come after its end.
    pub repeats: bool,
    /// The end is forced after this many tokens.
    pub budget: Option<usize>,
}

/// A text and its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The text.
    pub text: String,
    /// Its tokens, as the tokenizer spells it.
    pub tokens: Vec<TokenId>,
}

/// When a generation ends. The default has `max_tokens` 0 and generates nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Maximum number of tokens to generate. 0 computes only the prompt, for its log-probabilities.
    pub max_tokens: usize,
    /// Number of tokens before an end-of-generation token, a stop token or a stop string can end the generation.
    pub min_tokens: usize,
    /// Texts that end the generation, also across token boundaries.
    pub strings: Arc<StopStrings>,
    /// Tokens that end the generation.
    pub token_ids: Vec<TokenId>,
    /// Continue after the model's end-of-generation token.
    pub ignore_eos: bool,
    /// Keep the stop string that matched in the text.
    pub include_stop_string: bool,
}

/// How much of a prompt is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptProgress {
    /// All of its tokens.
    pub prompt_tokens: usize,
    /// Those that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Those whose keys and values are known: the cached and the computed ones.
    pub done_tokens: usize,
    /// Time since its first step began.
    pub elapsed: Duration,
}

/// What a client receives for a request, in this order: any number of `Progress`, at most one `Prompt`, any number of
/// `Token`s or `Block`s, and exactly one `Finished`, `Embedded` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A part of the prompt was computed. Sent only when `reports_progress` is set.
    Progress(PromptProgress),
    /// The prompt was computed. Sent only when `prompt_logprobs` is set.
    Prompt {
        /// One entry per prompt token. The first is `None`.
        logprobs: Vec<Option<PositionLogprobs>>,
    },
    /// One generated token.
    Token {
        /// The token.
        token: TokenId,
        /// The text that is certain now: whole characters, and never the beginning of a possible stop string.
        text: String,
        /// Its log-probability, when requested.
        logprobs: Option<PositionLogprobs>,
    },
    /// Some tokens that were generated together.
    Block {
        /// At least one.
        tokens: Vec<BlockToken>,
    },
    /// The generation is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Text that was held back until now.
        text: String,
        /// Tokens and times.
        usage: Usage,
    },
    /// The embedding of the prompt.
    Embedded {
        /// The vector, not normalized.
        vector: Vec<f32>,
        /// Tokens and times.
        usage: Usage,
    },
    /// The generation failed because of a fault of the server.
    Failed(GenerationError),
}

/// A token of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockToken {
    /// The token.
    pub token: TokenId,
    /// The text that is certain with it, as that of [`Event::Token`].
    pub text: String,
}

impl Event {
    /// Every value that [`Self::end_reason`] returns for a last event.
    pub const END_REASONS: [&str; 9] = [
        "stop_token",
        "stop_string",
        "length",
        "embedded",
        "cancelled",
        "engine_error",
        "shutting_down",
        "stalled_client",
        "constraint_failed",
    ];

    /// How the request ended, as one word for metrics and logs. `none` for an event that is not the last.
    #[must_use]
    pub fn end_reason(&self) -> &'static str {
        match self {
            Event::Finished { reason: FinishReason::StopToken(_), .. } => "stop_token",
            Event::Finished { reason: FinishReason::StopString(_), .. } => "stop_string",
            Event::Finished { reason: FinishReason::Length, .. } => "length",
            Event::Embedded { .. } => "embedded",
            Event::Finished { reason: FinishReason::Cancelled, .. } => "cancelled",
            Event::Failed(GenerationError::Engine(_)) => "engine_error",
            Event::Failed(GenerationError::ShuttingDown) => "shutting_down",
            Event::Failed(GenerationError::StalledClient) => "stalled_client",
            Event::Failed(GenerationError::Constraint(_)) => "constraint_failed",
            Event::Progress(_) | Event::Prompt { .. } | Event::Token { .. } | Event::Block { .. } => "none",
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's end-of-generation token, or a stop token.
    StopToken(TokenId),
    /// A stop string.
    StopString(String),
    /// `max_tokens` was reached, or the context is full.
    Length,
    /// The client cancelled the request. Only metrics and logs record this reason.
    Cancelled,
}

/// The tokens and times of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens, including an end-of-generation token.
    pub completion_tokens: usize,
    /// Tokens of the client's prediction that were computed ahead and are in the answer.
    pub accepted_prediction_tokens: usize,
    /// Tokens of the client's prediction that were computed ahead and are not in the answer.
    pub rejected_prediction_tokens: usize,
    /// From submission to the first step.
    pub queue_time: Duration,
    /// From submission to the first token.
    pub time_to_first_token: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
}

/// Why a request failed after it was accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// The engine failed on the request, also after a retry.
    #[error("the engine failed while computing this request: {0}")]
    Engine(String),
    /// The server is shutting down.
    #[error("the server stopped before the request finished")]
    ShuttingDown,
    /// The constraint on the output exceeded a limit, or no token could follow.
    #[error("the answer was ended, because its format could not be enforced any longer: {0}")]
    Constraint(String),
    /// The client did not read its tokens within the time limit.
    #[error("the client read its tokens too slowly and was cut off")]
    StalledClient,
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt and at least one token do not fit into the context.
    #[error(
        "context_length_exceeded: This model's maximum context length is {context_tokens} tokens; the request \
         ({prompt_tokens} tokens) exceeds the available context size ({context_tokens} tokens)"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Size of the context, in tokens.
        context_tokens: usize,
    },
    /// A token id is outside of the vocabulary, or the prompt is empty.
    #[error("{0}")]
    InvalidPrompt(String),
    /// The call asks for more sequences than the server ever accepts at once.
    #[error("the call asks for {asked} sequences at once; this server takes at most {most}")]
    TooManySequences {
        /// Prompts times answers per prompt.
        asked: usize,
        /// The server's limit.
        most: usize,
    },
    /// Too many requests wait.
    #[error("the server is overloaded: {waiting} requests wait; try again later")]
    Overloaded {
        /// Requests that wait.
        waiting: usize,
        /// Estimated time until the server accepts requests again.
        retry_after: Duration,
    },
    /// Too many prompt tokens wait to be computed.
    #[error("the server is overloaded: prompts of {tokens} tokens wait; try again later")]
    QueueFull {
        /// Prompt tokens that wait.
        tokens: usize,
        /// Estimated time until the server accepts requests again.
        retry_after: Duration,
    },
    /// No model is ready: it is loading or draining, or it failed to load.
    #[error("{reason}")]
    Unavailable {
        /// The reason, as a sentence.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
}
