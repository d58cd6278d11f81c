//! A generation request and what comes back: the words that the API, the scheduler and the sampler share.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::TokenId;

/// Numbers the requests of a process, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate. An API call with `n > 1` makes several.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationRequest {
    /// The prompt's tokens, special ones included; at least one.
    pub prompt: Vec<TokenId>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// When generation ends.
    pub stop: StopConditions,
    /// With each generated token return its log-probability and this many alternatives.
    pub logprobs: Option<usize>,
    /// Return the same for the prompt's tokens (the first has none).
    pub prompt_logprobs: Option<usize>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Lower runs first, as in vLLM; 0 for most.
    pub priority: i32,
    /// Who asks; clients share the engine fairly. `None`: one client of all that do not say.
    pub client: Option<Arc<str>>,
    /// Requests share cached prefixes only with those of the same salt.
    pub cache_salt: Option<Arc<str>>,
}

impl GenerationRequest {
    /// The seed of its random choices. One that it does not bring is drawn once, and the same from then on.
    pub fn fix_seed(&mut self) -> u64 {
        *self.sampling.seed.get_or_insert_with(|| uuid::Uuid::new_v4().as_u64_pair().0)
    }
}

pub use cuelight_engine::sample::{PositionLogprobs, SamplingParams, TokenLogprob};

/// When a generation ends. The default ends at `max_tokens` 0: set it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Most tokens to generate; 0 computes only the prompt (for its log-probabilities).
    pub max_tokens: usize,
    /// Do not end on an end-of-generation token, a stop token or a stop string before this many other tokens.
    pub min_tokens: usize,
    /// Texts that end the generation, also across token borders.
    pub strings: Vec<String>,
    /// Tokens that end the generation.
    pub token_ids: Vec<TokenId>,
    /// Go on after the model's end-of-generation token.
    pub ignore_eos: bool,
    /// Leave the stop string that matched in the text.
    pub include_stop_string: bool,
}

/// What a client hears of its request, in this order:
/// at most one `Prompt`, any number of `Token`s, and exactly one `Finished` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt was computed; sent only when `prompt_logprobs` was asked for.
    Prompt {
        /// One for each prompt token; `None` for the first.
        logprobs: Vec<Option<PositionLogprobs>>,
    },
    /// One generated token.
    Token {
        /// The token.
        token: TokenId,
        /// The text that is now certain: whole characters, and never the begin of what may be a stop string.
        text: String,
        /// Its log-probability, when asked for.
        logprobs: Option<PositionLogprobs>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Text that was held back and is now certain.
        text: String,
        /// What was counted.
        usage: Usage,
    },
    /// The end, by a fault of the server.
    Failed(GenerationError),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's own end-of-generation token, or a stop token.
    StopToken(TokenId),
    /// A stop string.
    StopString(String),
    /// `max_tokens`, or the context is full.
    Length,
    /// The client cancelled it; nobody hears this but metrics and logs.
    Cancelled,
}

/// What a request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, an end-of-generation token included.
    pub completion_tokens: usize,
    /// From submission until it first ran.
    pub queue_time: Duration,
    /// From submission to the first token.
    pub time_to_first_token: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
}

/// Why a request failed after it was accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// The engine failed on it, also when it was tried again.
    #[error("the engine failed while computing this request: {0}")]
    Engine(String),
    /// The server is shutting down.
    #[error("the server stopped before the request finished")]
    ShuttingDown,
    /// The client did not read its tokens for too long.
    #[error("the client read its tokens too slowly and was cut off")]
    StalledClient,
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Prompt and answer do not fit the context.
    #[error(
        "context_length_exceeded: This model's maximum context length is {context_tokens} tokens; the request \
         ({prompt_tokens} tokens) exceeds the available context size ({context_tokens} tokens)"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The context.
        context_tokens: usize,
    },
    /// A token id is not in the vocabulary, or the prompt is empty.
    #[error("{0}")]
    InvalidPrompt(String),
    /// The call asks for more sequences than are ever taken.
    #[error("the call asks for {asked} sequences at once; this server takes at most {most}")]
    TooManySequences {
        /// Prompts times answers.
        asked: usize,
        /// What there is room for when nothing else runs.
        most: usize,
    },
    /// Too many requests wait.
    #[error("the server is overloaded: {waiting} requests wait; try again later")]
    Overloaded {
        /// Requests that wait.
        waiting: usize,
        /// When room is expected.
        retry_after: Duration,
    },
    /// Too many tokens wait to be computed.
    #[error("the server is overloaded: prompts of {tokens} tokens wait; try again later")]
    QueueFull {
        /// Tokens of prompts that wait.
        tokens: usize,
        /// When room is expected.
        retry_after: Duration,
    },
    /// No model is ready: it loads, drains, or failed to load.
    #[error("{reason}")]
    Unavailable {
        /// Why, in a sentence.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
}
