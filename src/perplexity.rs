//! Perplexity of a model on a text: `exp(-1/n · Σ ln p(token | previous tokens in its window))`.
//!
//! The text is split into adjacent windows. Each is computed separately from an empty cache, as llama-perplexity does
//! (llama.cpp, `tools/perplexity`). Two figures are comparable only if windows and scoring are the same. Tokens after the last
//! full window are ignored. For a model with a BOS token, BOS replaces the first token of each window, so that all windows
//! have the same length and start like a text.

use crate::engine::{
    BLOCK_TOKENS, BlockId, Engine, EngineError, LogitsWanted, Progress, SequenceRows, SequenceState, Step, StepId,
    TokenId,
};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::sample::{Alternatives, InvalidLogits, position_logprobs};

/// Which tokens of a window are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scored {
    /// The tokens from index `context / 2 + 1`, counted from 0, so that at least half a window precedes each. This is the rule
    /// of llama-perplexity.
    LaterHalf,
    /// All tokens except the first, which has no prediction.
    All,
}

impl Scored {
    /// The index of the first scored token in a window of `context` tokens.
    #[must_use]
    pub fn first_index(self, context: usize) -> usize {
        match self {
            Scored::LaterHalf => context / 2 + 1,
            Scored::All => 1,
        }
    }
}

/// One window of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The tokens of the window.
    pub tokens: Vec<TokenId>,
    /// The index of the first scored token.
    pub first_scored: usize,
}

/// Why a perplexity cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    /// The text is shorter than a window.
    #[error("the text has {tokens} tokens, but a window needs {context}; use a longer text or a smaller context")]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// A window would have no scored token.
    #[error("no token of a window of {0} tokens would be scored; use at least 3")]
    ContextTooSmall(usize),
    /// The engine's context is smaller than a window.
    #[error("a window of {context} tokens is longer than the engine's context of {available}")]
    ContextTooLarge {
        /// Tokens of a window.
        context: usize,
        /// Tokens of the engine's context.
        available: usize,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model's logits are not a distribution.
    #[error(transparent)]
    Logits(#[from] InvalidLogits),
    /// The engine needs experts that are computed elsewhere.
    #[error("this model needs experts that are computed elsewhere, which a perplexity measurement does not support")]
    AwaitsExperts,
}

/// A tokenized text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The tokens, after BOS if the model uses one. No EOS follows, because windows end in the middle of the text.
    pub tokens: Vec<TokenId>,
    /// The BOS token that every window starts with, if the model uses one.
    pub bos: Option<TokenId>,
}

impl Text {
    /// Tokenizes a text. Names of special tokens in it are plain text.
    ///
    /// # Errors
    /// [`TokenizerError`] for text that exhausts the limits of the pre-tokenizer.
    pub fn new(tokenizer: &Tokenizer, text: &str) -> Result<Self, TokenizerError> {
        // The encoding of an empty text consists of the special tokens that the model adds to every text.
        let around = tokenizer.encode("", true, false)?;
        let bos = tokenizer.bos().filter(|bos| around.first() == Some(bos));
        let mut tokens: Vec<TokenId> = bos.into_iter().collect();
        tokens.extend(tokenizer.encode(text, false, false)?);
        Ok(Text { tokens, bos })
    }

    /// Splits the text into windows of `context` tokens.
    ///
    /// # Errors
    /// [`PerplexityError::TooShort`] and [`PerplexityError::ContextTooSmall`].
    pub fn windows(&self, context: usize, scored: Scored) -> Result<Vec<Window>, PerplexityError> {
        let first_scored = scored.first_index(context);
        if first_scored >= context {
            return Err(PerplexityError::ContextTooSmall(context));
        }
        if self.tokens.len() < context {
            return Err(PerplexityError::TooShort { tokens: self.tokens.len(), context });
        }
        let window = |tokens: &[TokenId]| {
            let mut tokens = tokens.to_vec();
            if let (Some(bos), Some(first)) = (self.bos, tokens.first_mut()) {
                *first = bos;
            }
            Window { tokens, first_scored }
        };
        Ok(self.tokens.chunks_exact(context).map(window).collect())
    }
}

/// The sum of the negative log-likelihoods of tokens, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Perplexity {
    /// Number of scored tokens.
    pub tokens: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// Adds one token.
    pub fn add(&mut self, nats: f64) {
        self.tokens += 1;
        self.sum += nats;
        self.sum_of_squares += nats * nats;
    }

    /// Mean negative log-likelihood of a token, in nats; NaN without tokens.
    #[must_use]
    pub fn mean_nats(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// Standard error of the mean: the standard deviation divided by `sqrt(tokens - 1)`. It estimates how much the mean varies
    /// between similar texts. It does not apply to the difference of two models on the same text.
    #[must_use]
    pub fn standard_error_nats(&self) -> f64 {
        let variance = self.sum_of_squares / self.tokens as f64 - self.mean_nats().powi(2);
        // Rounding can make the variance of equal values negative.
        (variance.max(0.0) / self.tokens.saturating_sub(1).max(1) as f64).sqrt()
    }

    /// The perplexity.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.mean_nats().exp()
    }

    /// The standard error of the perplexity, to first order.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        self.value() * self.standard_error_nats()
    }
}

/// Scores windows on an engine that has no other users, in its first KV blocks.
pub struct Scorer<'a, E> {
    engine: &'a mut E,
    steps: u64,
}

impl<'a, E: Engine> Scorer<'a, E> {
    /// A scorer. It overwrites the engine's KV cache.
    pub fn new(engine: &'a mut E) -> Self {
        Scorer { engine, steps: 0 }
    }

    /// Adds the scored tokens of a window.
    ///
    /// # Errors
    /// [`PerplexityError`] when the window exceeds the context, or the engine fails.
    pub fn score(&mut self, window: &Window, perplexity: &mut Perplexity) -> Result<(), PerplexityError> {
        let limits = self.engine.limits().clone();
        let (context, available) =
            (window.tokens.len(), limits.context_tokens.min(limits.kv_blocks.saturating_mul(BLOCK_TOKENS)));
        if context > available {
            return Err(PerplexityError::ContextTooLarge { context, available });
        }
        // The row before a token predicts it. The last row predicts no known token, but its step computes it anyway.
        let first_row = window.first_scored - 1;
        let mut position = 0;
        while position < context {
            let (end, most, wanted) = if position < first_row {
                (first_row, limits.max_batched_tokens, LogitsWanted::None)
            } else {
                (context, limits.max_batched_tokens.min(limits.max_logits_rows), LogitsWanted::All)
            };
            let rows = (end - position).min(most);
            let logits = self.step(&window.tokens[..position + rows], position, wanted)?;
            let predicted = window.tokens[position..].iter().skip(1);
            for (row, &token) in logits.chunks_exact(limits.vocab_size).zip(predicted) {
                perplexity.add(-f64::from(position_logprobs(row, token, Alternatives::MostLikely(0))?.sampled.logprob));
            }
            position += rows;
        }
        Ok(())
    }

    /// Computes the tokens from index `position`. Returns [rows, vocab_size] logits if they are requested.
    fn step(&mut self, tokens: &[TokenId], position: usize, logits: LogitsWanted) -> Result<Vec<f32>, PerplexityError> {
        let rows = SequenceRows {
            tokens: tokens[position..].to_vec(),
            first_position: position as u32,
            block_table: (0..tokens.len().div_ceil(BLOCK_TOKENS) as BlockId).collect(),
            state: SequenceState::in_place(self.engine.limits(), 0, position as u32, tokens.len() - position),
            logits,
            ..SequenceRows::default()
        };
        let step = Step { id: StepId(self.steps), sequences: vec![rows] };
        self.steps += 1;
        match self.engine.begin(step)? {
            Progress::Done(output) => Ok(output.logits),
            Progress::AwaitExperts(_) => Err(PerplexityError::AwaitsExperts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineLimits, ExpertResult, StepOutput};

    /// After token t, token t + 1 of four has probability 3/4, and each of the others 1/12.
    struct Counting {
        limits: EngineLimits,
        steps: Vec<(u32, usize, usize)>,
    }

    fn counting(max_batched_tokens: usize, max_logits_rows: usize) -> Counting {
        let limits = EngineLimits {
            vocab_size: 4,
            context_tokens: 32,
            kv_blocks: 2,
            max_batched_tokens,
            max_sequences: 1,
            max_logits_rows,
            device: "counting".into(),
            ..EngineLimits::default()
        };
        Counting { limits, steps: Vec::new() }
    }

    impl Engine for Counting {
        fn limits(&self) -> &EngineLimits {
            &self.limits
        }

        fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
            let rows = &step.sequences[0];
            assert!(rows.tokens.len() <= self.limits.max_batched_tokens);
            assert!(step.logits_rows() <= self.limits.max_logits_rows);
            assert!(rows.block_table.len() * BLOCK_TOKENS >= rows.first_position as usize + rows.tokens.len());
            self.steps.push((rows.first_position, rows.tokens.len(), step.logits_rows()));
            let wanted = if step.logits_rows() > 0 { &rows.tokens[..] } else { &[] };
            let row = |&token: &TokenId| (0..4).map(move |t| if t == (token + 1) % 4 { 9f32.ln() } else { 0.0 });
            let logits = wanted.iter().flat_map(row).collect();
            Ok(Progress::Done(StepOutput { logits, ..StepOutput::empty(step.id) }))
        }

        fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
            Err(EngineError::InvalidStep { step: result.step, reason: "no experts here".into() })
        }
    }

    fn windows(
        tokens: &[TokenId],
        bos: Option<TokenId>,
        context: usize,
        scored: Scored,
    ) -> Result<Vec<Window>, PerplexityError> {
        Text { tokens: tokens.to_vec(), bos }.windows(context, scored)
    }

    #[test]
    fn a_text_is_split_into_full_windows_that_start_with_bos() {
        let text: Vec<TokenId> = (100..110).collect();
        let cut = windows(&text, Some(1), 4, Scored::LaterHalf).unwrap();
        let tokens: Vec<&[TokenId]> = cut.iter().map(|window| &window.tokens[..]).collect();
        assert_eq!(tokens, [[1, 101, 102, 103], [1, 105, 106, 107]], "the last two tokens are not a full window");
        assert_eq!(windows(&text, None, 4, Scored::All).unwrap()[1].tokens, [104, 105, 106, 107]);
    }

    #[test]
    fn a_window_of_512_tokens_has_255_or_511_scored_tokens() {
        let text = vec![0; 512];
        for (scored, count) in [(Scored::LaterHalf, 255), (Scored::All, 511)] {
            assert_eq!(512 - windows(&text, None, 512, scored).unwrap()[0].first_scored, count);
        }
    }

    #[test]
    fn texts_shorter_than_a_window_and_windows_without_scores_are_refused() {
        let error = |tokens: &[TokenId], context| windows(tokens, None, context, Scored::LaterHalf).unwrap_err();
        assert!(error(&[1, 2, 3], 4).to_string().contains("3 tokens, but a window needs 4"));
        assert!(matches!(error(&[1, 2, 3], 2), PerplexityError::ContextTooSmall(2)));
        assert!(matches!(error(&[], 0), PerplexityError::ContextTooSmall(0)));
        assert!(windows(&[1, 2, 3], None, 3, Scored::LaterHalf).is_ok());
    }

    #[test]
    fn perplexity_is_the_inverse_of_the_geometric_mean_of_probabilities() {
        // From index 3: token 3 after 2 is likely, token 1 after 3 is not, token 2 after 1 is.
        let cut = windows(&[0, 1, 2, 3, 1, 2], None, 6, Scored::All).unwrap();
        let (mut engine, mut perplexity) = (counting(32, 32), Perplexity::default());
        Scorer::new(&mut engine).score(&Window { first_scored: 3, ..cut[0].clone() }, &mut perplexity).unwrap();
        assert_eq!(perplexity.tokens, 3);
        let expected = (0.75f64 * (1.0 / 12.0) * 0.75).powf(-1.0 / 3.0);
        assert!((perplexity.value() / expected - 1.0).abs() < 1e-6, "{} {expected}", perplexity.value());
    }

    #[test]
    fn steps_respect_the_limits_and_request_only_scored_logits() {
        let cut = windows(&[0; 20], None, 20, Scored::LaterHalf).unwrap();
        let mut engine = counting(8, 4);
        let mut perplexity = Perplexity::default();
        Scorer::new(&mut engine).score(&cut[0], &mut perplexity).unwrap();
        assert_eq!(engine.steps, [(0, 8, 0), (8, 2, 0), (10, 4, 4), (14, 4, 4), (18, 2, 2)]);
        assert_eq!(perplexity.tokens, 9);
    }

    #[test]
    fn chunking_does_not_change_the_sum() {
        let cut = windows(&[0, 1, 2, 2, 3, 0, 2, 1], None, 8, Scored::All).unwrap();
        let scored = |max_batched_tokens, max_logits_rows| {
            let mut perplexity = Perplexity::default();
            let mut engine = counting(max_batched_tokens, max_logits_rows);
            Scorer::new(&mut engine).score(&cut[0], &mut perplexity).unwrap();
            perplexity
        };
        assert_eq!(scored(32, 32), scored(3, 1));
    }

    #[test]
    fn a_window_longer_than_the_engines_context_is_refused() {
        let cut = windows(&[0; 40], None, 40, Scored::All).unwrap();
        let error = Scorer::new(&mut counting(8, 8)).score(&cut[0], &mut Perplexity::default()).unwrap_err();
        assert!(error.to_string().contains("40 tokens is longer than the engine's context of 32"), "{error}");
    }

    #[test]
    fn the_standard_error_is_that_of_the_mean() {
        let mut perplexity = Perplexity::default();
        [1.0, 2.0, 3.0, 2.0].into_iter().for_each(|nats| perplexity.add(nats));
        assert_eq!(perplexity.mean_nats(), 2.0);
        assert!((perplexity.standard_error_nats() - (0.5f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!((perplexity.standard_error() - 2f64.exp() * (0.5f64 / 3.0).sqrt()).abs() < 1e-12);
    }
}
