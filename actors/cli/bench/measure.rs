//! Timing an engine: prompts computed, tokens generated, each at a depth, as llama-bench defines them.

use std::ops::Range;
use std::time::{Duration, Instant};

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, Engine, EngineError, LogitsWanted, Progress, SequenceRows, Step, StepId, TokenId,
};

/// What is timed: for each of some sequences `prompt` tokens computed, and then `generated` tokens one by one, all
/// sequences in one step, after `depth` tokens that are not timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens computed in large steps.
    pub prompt: usize,
    /// Tokens computed one by one.
    pub generated: usize,
    /// Tokens in the cache before the clock starts.
    pub depth: usize,
    /// Sequences side by side.
    pub parallel: usize,
}

impl Shape {
    /// As llama-bench calls it: "pp512", "tg128 @ d4096", "pp512+tg128"; with several sequences "16 x tg128".
    #[must_use]
    pub fn name(&self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generated)];
        let parts: Vec<String> =
            parts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}{count}")).collect();
        let parts = match self.parallel {
            1 => parts.join("+"),
            parallel => format!("{parallel} x {}", parts.join("+")),
        };
        match self.depth {
            0 => parts,
            depth => format!("{parts} @ d{depth}"),
        }
    }

    /// Tokens whose computation is timed, of all sequences.
    #[must_use]
    pub fn timed_tokens(&self) -> usize {
        self.parallel * (self.prompt + self.generated)
    }

    /// The context that each sequence needs.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.depth + self.prompt + self.generated
    }

    /// KV blocks of one sequence.
    fn blocks(&self) -> usize {
        self.context_tokens().div_ceil(BLOCK_TOKENS)
    }
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine asked for something that a benchmark of one engine has not.
    #[error("this model needs experts computed elsewhere, which the benchmark does not do")]
    AwaitsExperts,
    /// The cache is too small.
    #[error("{shape} needs {needed} tokens of context, but the engine has {available}")]
    TooLong {
        /// The test.
        shape: String,
        /// Tokens it needs.
        needed: usize,
        /// Tokens there are.
        available: usize,
    },
}

/// Sequences of one length on an engine, whose blocks are simply numbered in order.
struct Sequences<'a, E> {
    engine: &'a mut E,
    shape: Shape,
    position: usize,
    steps: u64,
    random: u64,
}

/// Times a shape: a warm-up of the same shape, then `repetitions` samples.
///
/// # Errors
/// [`MeasureError`].
pub fn measure<E: Engine>(engine: &mut E, shape: Shape, repetitions: usize) -> Result<Vec<Duration>, MeasureError> {
    let limits = engine.limits();
    let available = limits.context_tokens.min(limits.kv_blocks / shape.parallel * BLOCK_TOKENS);
    if shape.context_tokens() > available {
        return Err(MeasureError::TooLong { shape: shape.name(), needed: shape.context_tokens(), available });
    }
    // Decode steps all have one shape: a few of them warm up as well as all would.
    sample(engine, Shape { generated: shape.generated.min(8), ..shape })?;
    (0..repetitions).map(|_| sample(engine, shape)).collect()
}

fn sample<E: Engine>(engine: &mut E, shape: Shape) -> Result<Duration, MeasureError> {
    let mut sequences = Sequences { engine, shape, position: 0, steps: 0, random: 1 };
    sequences.prefill(shape.depth)?;
    let start = Instant::now();
    sequences.prefill(shape.prompt)?;
    for _ in 0..shape.generated {
        sequences.step(0..shape.parallel, 1, LogitsWanted::Last)?;
        sequences.position += 1;
    }
    Ok(start.elapsed())
}

impl<E: Engine> Sequences<'_, E> {
    /// Computes tokens of one sequence after the other in steps as large as the engine takes; the last row's logits come
    /// back, as in real use.
    fn prefill(&mut self, tokens: usize) -> Result<(), MeasureError> {
        let largest = self.engine.limits().max_batched_tokens;
        let start = self.position;
        for sequence in 0..self.shape.parallel {
            self.position = start;
            while self.position < start + tokens {
                let rows = (start + tokens - self.position).min(largest);
                let last = self.position + rows == start + tokens;
                self.step(sequence..sequence + 1, rows, if last { LogitsWanted::Last } else { LogitsWanted::None })?;
                self.position += rows;
            }
        }
        Ok(())
    }

    /// One step of the next `rows` tokens of some sequences.
    fn step(&mut self, sequences: Range<usize>, rows: usize, logits: LogitsWanted) -> Result<(), MeasureError> {
        let vocab_size = self.engine.limits().vocab_size;
        let blocks = (self.position + rows).div_ceil(BLOCK_TOKENS);
        let mut share = |sequence: usize| {
            let first_block = sequence * self.shape.blocks();
            SequenceRows {
                tokens: (0..rows).map(|_| next_token(&mut self.random, vocab_size)).collect(),
                first_position: self.position as u32,
                block_table: (first_block..first_block + blocks).map(|block| block as BlockId).collect(),
                logits,
            }
        };
        let step = Step { id: StepId(self.steps), sequences: sequences.map(&mut share).collect() };
        self.steps += 1;
        match self.engine.begin(step)? {
            Progress::Done(_) => Ok(()),
            Progress::AwaitExperts(_) => Err(MeasureError::AwaitsExperts),
        }
    }
}

/// Any token does; the same ones each time make runs comparable. (Knuth's MMIX generator.)
fn next_token(random: &mut u64, vocab_size: usize) -> TokenId {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*random >> 33) % vocab_size.max(1) as u64) as TokenId
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cuelight_engine::engine::{EngineLimits, ExpertResult, StepOutput};

    use super::*;

    /// Notes the rows and logits of each step.
    struct Notebook {
        limits: EngineLimits,
        steps: Vec<(usize, u32, usize, usize)>,
    }

    impl Engine for Notebook {
        fn limits(&self) -> &EngineLimits {
            &self.limits
        }

        fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
            let share = &step.sequences[0];
            assert!(share.tokens.iter().all(|token| (*token as usize) < self.limits.vocab_size));
            self.steps.push((step.rows(), share.first_position, share.block_table.len(), step.logits_rows()));
            Ok(Progress::Done(StepOutput { id: step.id, logits: Vec::new(), elapsed: Duration::ZERO, ops: Vec::new() }))
        }

        fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
            Err(EngineError::InvalidStep { step: result.step, reason: "no experts here".into() })
        }
    }

    fn notebook() -> Notebook {
        let limits = EngineLimits {
            vocab_size: 10,
            context_tokens: 128,
            kv_blocks: 8,
            max_batched_tokens: 32,
            max_sequences: 1,
            max_logits_rows: 1,
            device: "notebook".into(),
        };
        Notebook { limits, steps: Vec::new() }
    }

    #[test]
    fn a_prompt_is_chunked_and_generation_goes_token_by_token() {
        let mut engine = notebook();
        sample(&mut engine, Shape { prompt: 40, generated: 2, depth: 16, parallel: 1 }).unwrap();
        assert_eq!(engine.steps, [(16, 0, 1, 1), (32, 16, 3, 0), (8, 48, 4, 1), (1, 56, 4, 1), (1, 57, 4, 1)]);
    }

    #[test]
    fn several_sequences_are_prefilled_in_turn_and_generate_together() {
        let mut engine = notebook();
        let shape = Shape { prompt: 0, generated: 2, depth: 16, parallel: 3 };
        assert_eq!(shape.timed_tokens(), 6);
        sample(&mut engine, shape).unwrap();
        assert_eq!(engine.steps, [(16, 0, 1, 1), (16, 0, 1, 1), (16, 0, 1, 1), (3, 16, 2, 3), (3, 17, 2, 3)]);
        assert!(
            measure(&mut engine, Shape { depth: 40, ..shape }, 1).is_err(),
            "8 blocks are too few for 3 x 42 tokens"
        );
    }

    #[test]
    fn each_sample_follows_a_warm_up() {
        let mut engine = notebook();
        let samples = measure(&mut engine, Shape { prompt: 32, generated: 0, depth: 0, parallel: 1 }, 3).unwrap();
        assert_eq!((samples.len(), engine.steps.len()), (3, 4));
    }

    #[test]
    fn a_shape_beyond_the_context_is_refused() {
        let error =
            measure(&mut notebook(), Shape { prompt: 128, generated: 1, depth: 0, parallel: 1 }, 1).unwrap_err();
        assert_eq!(error.to_string(), "pp128+tg1 needs 129 tokens of context, but the engine has 128");
    }

    #[test]
    fn shapes_are_named_as_llama_bench_names_them() {
        let name = |prompt, generated, depth| Shape { prompt, generated, depth, parallel: 1 }.name();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 4096), "tg128 @ d4096");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
        assert_eq!(Shape { prompt: 0, generated: 64, depth: 32, parallel: 16 }.name(), "16 x tg64 @ d32");
    }
}
