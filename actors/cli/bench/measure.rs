//! Timing an engine as llama-bench does: prompt processing and text generation, each at a depth.

use std::ops::Range;
use std::time::{Duration, Instant};

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, Engine, EngineError, EngineLimits, LogitsWanted, Progress, RowSamplingParams, SequenceRows,
    SequenceState, Step, StepId, StepOutput, TokenId,
};
use cuelight_engine::profile::{Cost, OpSpan};

/// What is timed. After `depth` untimed tokens, each sequence computes `prompt` tokens in large steps; then all sequences
/// together generate `generated` tokens one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Prompt tokens per sequence.
    pub prompt: usize,
    /// Generated tokens per sequence.
    pub generated: usize,
    /// Tokens in the cache before timing starts.
    pub depth: usize,
    /// Number of sequences.
    pub parallel: usize,
}

impl Shape {
    /// The name as in llama-bench: "pp512", "tg128 @ d4096", "pp512+tg128"; with several sequences "16 x tg128".
    #[must_use]
    pub fn name(&self) -> String {
        let names = [("pp", self.prompt), ("tg", self.generated)];
        let names: Vec<String> =
            names.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}{count}")).collect();
        let name = match self.parallel {
            1 => names.join("+"),
            parallel => format!("{parallel} x {}", names.join("+")),
        };
        match self.depth {
            0 => name,
            depth => format!("{name} @ d{depth}"),
        }
    }

    /// Timed tokens of all sequences.
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
    /// The engine waits for experts that are computed outside of it.
    #[error("this model needs experts computed elsewhere, which the benchmark does not do")]
    AwaitsExperts,
    /// The KV cache is too small.
    #[error("{shape} needs {needed} tokens of context, but the engine has {available}")]
    TooLong {
        /// The test.
        shape: String,
        /// Tokens that the test needs.
        needed: usize,
        /// Tokens that the engine has.
        available: usize,
    },
}

/// The result of timing a shape.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// The time of each repetition.
    pub times: Vec<Duration>,
    /// The minimum work of one repetition, if the engine knows it.
    pub cost: Option<Cost>,
    /// The ops of all repetitions, if the engine measures them.
    pub ops: Vec<OpSpan>,
}

/// Times a shape: one warm-up, then `repetitions` samples.
///
/// # Errors
/// [`MeasureError`] when the shape does not fit or the engine fails.
pub fn measure<E: Engine>(engine: &mut E, shape: Shape, repetitions: usize) -> Result<Samples, MeasureError> {
    let limits = engine.limits();
    let available = limits.context_tokens.min(limits.kv_blocks / shape.parallel * BLOCK_TOKENS);
    if shape.context_tokens() > available {
        return Err(MeasureError::TooLong { shape: shape.name(), needed: shape.context_tokens(), available });
    }
    // Decode steps all have the same shape: a few are enough to warm up.
    sample(engine, Shape { generated: shape.generated.min(8), ..shape })?;
    let mut samples = Samples { cost: cost(engine, shape), ..Samples::default() };
    for _ in 0..repetitions {
        let (time, outputs) = sample(engine, shape)?;
        samples.times.push(time);
        samples.ops.extend(outputs.into_iter().flat_map(|output| output.ops));
    }
    Ok(samples)
}

/// The time of one repetition, and the outputs of its timed steps without their logits.
fn sample<E: Engine>(engine: &mut E, shape: Shape) -> Result<(Duration, Vec<StepOutput>), MeasureError> {
    let limits = engine.limits().clone();
    Sequences::new(&limits, shape, 0).prefill(shape.depth, &mut |step| run(engine, step).map(drop))?;
    let mut outputs = Vec::with_capacity(shape.prompt.div_ceil(limits.max_batched_tokens) + shape.generated);
    let start = Instant::now();
    Sequences::new(&limits, shape, shape.depth).timed(&mut |step| {
        outputs.push(StepOutput { logits: Vec::new(), ..run(engine, step)? });
        Ok(())
    })?;
    Ok((start.elapsed(), outputs))
}

/// The minimum work of one repetition.
fn cost<E: Engine>(engine: &E, shape: Shape) -> Option<Cost> {
    let mut total = Some(Cost::default());
    let count = Sequences::new(engine.limits(), shape, shape.depth).timed(&mut |step| {
        total = total.zip(engine.cost(&step)).map(|(total, cost)| total + cost);
        Ok(())
    });
    count.ok().and(total)
}

fn run<E: Engine>(engine: &mut E, step: Step) -> Result<StepOutput, MeasureError> {
    match engine.begin(step)? {
        Progress::Done(output) => Ok(output),
        Progress::AwaitExperts(_) => Err(MeasureError::AwaitsExperts),
    }
}

/// The output of a sequence's last row: a token from engines that sample, logits from the others.
const NEXT_TOKEN: LogitsWanted = LogitsWanted::Token(RowSamplingParams::GREEDY);

/// Receives each step.
type Run<'a> = &'a mut dyn FnMut(Step) -> Result<(), MeasureError>;

/// Sequences of equal length, with KV blocks numbered in order.
struct Sequences<'a> {
    limits: &'a EngineLimits,
    shape: Shape,
    position: usize,
    steps: u64,
    random: u64,
}

impl<'a> Sequences<'a> {
    /// Sequences at a position.
    fn new(limits: &'a EngineLimits, shape: Shape, position: usize) -> Self {
        Sequences { limits, shape, position, steps: 0, random: 1 }
    }

    /// Runs the timed steps.
    fn timed(&mut self, run: Run<'_>) -> Result<(), MeasureError> {
        self.prefill(self.shape.prompt, run)?;
        for _ in 0..self.shape.generated {
            run(self.step(0..self.shape.parallel, 1, NEXT_TOKEN))?;
            self.position += 1;
        }
        Ok(())
    }

    /// Computes prompt tokens of one sequence after the other, in steps of the engine's maximum size. The last row returns
    /// a token or logits, as in real use.
    fn prefill(&mut self, tokens: usize, run: Run<'_>) -> Result<(), MeasureError> {
        let largest = self.limits.max_batched_tokens;
        let start = self.position;
        for sequence in 0..self.shape.parallel {
            self.position = start;
            while self.position < start + tokens {
                let rows = (start + tokens - self.position).min(largest);
                let last = self.position + rows == start + tokens;
                let wanted = if last { NEXT_TOKEN } else { LogitsWanted::None };
                run(self.step(sequence..sequence + 1, rows, wanted))?;
                self.position += rows;
            }
        }
        Ok(())
    }

    /// A step with the next `rows` tokens of each of these sequences.
    fn step(&mut self, sequences: Range<usize>, rows: usize, logits: LogitsWanted) -> Step {
        let vocab_size = self.limits.vocab_size;
        let blocks = (self.position + rows).div_ceil(BLOCK_TOKENS);
        let mut rows_of = |sequence: usize| {
            let first_block = sequence * self.shape.blocks();
            SequenceRows {
                tokens: (0..rows).map(|_| next_token(&mut self.random, vocab_size)).collect(),
                first_position: self.position as u32,
                block_table: (first_block..first_block + blocks).map(|block| block as BlockId).collect(),
                state: SequenceState::in_place(self.limits, sequence as u32, self.position as u32, rows),
                logits,
                ..SequenceRows::default()
            }
        };
        let step = Step { id: StepId(self.steps), sequences: sequences.map(&mut rows_of).collect() };
        self.steps += 1;
        step
    }
}

/// Any tokens will do; the same ones in each run make runs comparable. (Knuth's MMIX generator.)
fn next_token(random: &mut u64, vocab_size: usize) -> TokenId {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*random >> 33) % vocab_size.max(1) as u64) as TokenId
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::engine::ExpertResult;
    use cuelight_engine::profile::OpLabel;

    use super::*;

    /// Records the rows and logits of each step.
    struct RecordingEngine {
        limits: EngineLimits,
        steps: Vec<(usize, u32, usize, usize)>,
    }

    impl Engine for RecordingEngine {
        fn limits(&self) -> &EngineLimits {
            &self.limits
        }

        fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
            let first = &step.sequences[0];
            assert!(first.tokens.iter().all(|token| (*token as usize) < self.limits.vocab_size));
            self.steps.push((step.rows(), first.first_position, first.block_table.len(), step.logits_rows()));
            let op = OpLabel { op: "recorded", weights: String::new(), layer: None };
            let cost = Cost::default();
            let ops = vec![OpSpan { op: op.into(), start: Duration::ZERO, elapsed: Duration::ZERO, cost }];
            Ok(Progress::Done(StepOutput { logits: vec![0.0], ops, ..StepOutput::empty(step.id) }))
        }

        fn cost(&self, step: &Step) -> Option<Cost> {
            Some(Cost { memory_bytes: u64::from(step.sequences[0].first_position), ..Cost::default() })
        }

        fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
            Err(EngineError::InvalidStep { step: result.step, reason: "no experts here".into() })
        }
    }

    fn recording_engine() -> RecordingEngine {
        let limits = EngineLimits {
            vocab_size: 10,
            context_tokens: 128,
            kv_blocks: 8,
            max_batched_tokens: 32,
            max_sequences: 1,
            max_logits_rows: 1,
            device: "recording".into(),
            ..EngineLimits::default()
        };
        RecordingEngine { limits, steps: Vec::new() }
    }

    #[test]
    fn a_prompt_is_chunked_and_generation_is_token_by_token() {
        let mut engine = recording_engine();
        sample(&mut engine, Shape { prompt: 40, generated: 2, depth: 16, parallel: 1 }).unwrap();
        assert_eq!(engine.steps, [(16, 0, 1, 1), (32, 16, 3, 0), (8, 48, 4, 1), (1, 56, 4, 1), (1, 57, 4, 1)]);
    }

    #[test]
    fn sequences_are_prefilled_one_by_one_and_generate_together() {
        let mut engine = recording_engine();
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
    fn a_warm_up_precedes_the_samples() {
        let mut engine = recording_engine();
        let samples = measure(&mut engine, Shape { prompt: 32, generated: 0, depth: 0, parallel: 1 }, 3).unwrap();
        assert_eq!((samples.times.len(), engine.steps.len()), (3, 4));
    }

    #[test]
    fn cost_and_ops_cover_the_timed_steps_only() {
        let samples =
            measure(&mut recording_engine(), Shape { prompt: 40, generated: 2, depth: 16, parallel: 1 }, 3).unwrap();
        // The recording engine reports a step's first position as its cost.
        assert_eq!(samples.cost.unwrap().memory_bytes, 16 + 48 + 56 + 57);
        assert_eq!(samples.ops.len(), 3 * 4);
    }

    #[test]
    fn a_shape_beyond_the_context_is_refused() {
        let error = measure(&mut recording_engine(), Shape { prompt: 128, generated: 1, depth: 0, parallel: 1 }, 1)
            .unwrap_err();
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
