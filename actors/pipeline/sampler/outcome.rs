//! What a step computes for a sequence, what is sampled of it, and how the sequence continues.

use cuelight_engine::engine::{DenoisedRow, SampledToken, TokenId};

use crate::core::request::{Event, FinishReason, GenerationError, PositionLogprobs};
use crate::pipeline::policy::{CanvasState, Verdict};

/// The result of a step for a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) enum Computed<'a> {
    /// Its rows of logits.
    Logits(&'a [f32]),
    /// Its rows of hidden values.
    Hidden {
        /// The rows.
        values: &'a [f32],
        /// Values of a row.
        width: usize,
    },
    /// The token that the engine sampled.
    Sampled(SampledToken),
    /// The rows of its canvas.
    Denoised {
        /// The statistics of each row.
        rows: &'a [DenoisedRow],
        /// The hidden values for the next step.
        hidden: &'a [f32],
    },
}

/// The sampling result of a sequence, before it is sent to the client.
#[derive(Debug)]
pub(super) enum SampleOutcome {
    /// Rows of the prompt were scored. No token was sampled.
    Scored,
    /// The token was known already, because a constraint had forced it.
    Known(TokenId),
    /// Tokens were sampled.
    Tokens {
        /// The accepted tokens of a draft, which are converted to text already.
        accepted: Vec<SentToken>,
        newest: NewToken,
    },
    /// A stop string in the text of the last accepted token ended the request.
    Stopped { accepted: Vec<SentToken>, reason: FinishReason, rest: String },
    /// The request generates no tokens.
    Nothing,
    /// The embedding of the prompt is known.
    Embedded(Vec<f32>),
    /// Its block needs another step.
    Denoised(CanvasState),
    /// The tokens of its block.
    Block(Vec<TokenId>),
    /// Sampling failed.
    Failed(GenerationError),
}

impl SampleOutcome {
    /// Number of accepted tokens of a draft.
    pub fn accepted(&self) -> usize {
        match self {
            SampleOutcome::Tokens { accepted, .. } | SampleOutcome::Stopped { accepted, .. } => accepted.len(),
            _ => 0,
        }
    }

    /// Whether a block is finished.
    pub fn is_block(&self) -> bool {
        matches!(self, SampleOutcome::Block(_))
    }
}

/// A token with its text.
#[derive(Debug)]
pub(super) struct SentToken {
    pub token: TokenId,
    pub text: String,
    pub logprobs: Option<PositionLogprobs>,
}

/// A token that is not converted to text yet.
#[derive(Debug)]
pub(super) struct NewToken {
    pub token: TokenId,
    pub logprobs: Option<PositionLogprobs>,
    /// Set when it is the last token. A stop string in its text is found later.
    pub last: Option<FinishReason>,
}

/// Why a request ends, and the text that was held back so far. `None` while it goes on.
pub(super) type RequestEnd = Option<(FinishReason, String)>;

/// How a sequence continues after a step.
pub(super) struct Advance {
    pub verdict: Verdict,
    /// Number of tokens that were sent to the client.
    pub tokens: usize,
    /// How many of them, at the end, a constraint forced.
    pub forced: usize,
    /// The last event, when the request ended.
    pub end: Option<Event>,
}

impl Advance {
    /// The request ended with an error, after `tokens` tokens of this step.
    pub fn failed(tokens: usize, error: GenerationError) -> Self {
        Advance { verdict: Verdict::Ended, tokens, forced: 0, end: Some(Event::Failed(error)) }
    }
}
