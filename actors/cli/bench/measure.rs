//! Timing an engine: prompts computed, tokens generated, each at a depth, as llama-bench defines them.

use std::ops::Range;
use std::time::{Duration, Instant};

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, Engine, EngineError, EngineLimits, LogitsWanted, Progress, SequenceRows, Step, StepId,
    StepOutput, TokenChoice, TokenId,
};
use cuelight_engine::profile::{Cost, OpSpan};

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

/// What came of timing a shape.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// How long each repetition took.
    pub times: Vec<Duration>,
    /// The least that one repetition has to do, when the engine knows.
    pub cost: Option<Cost>,
    /// The ops of all repetitions, when the engine measures them.
    pub ops: Vec<OpSpan>,
}

/// Times a shape: a warm-up of the same shape, then `repetitions` samples.
///
/// # Errors
/// [`MeasureError`].
pub fn measure<E: Engine>(engine: &mut E, shape: Shape, repetitions: usize) -> Result<Samples, MeasureError> {
    let limits = engine.limits();
    let available = limits.context_tokens.min(limits.kv_blocks / shape.parallel * BLOCK_TOKENS);
    if shape.context_tokens() > available {
        return Err(MeasureError::TooLong { shape: shape.name(), needed: shape.context_tokens(), available });
    }
    // Decode steps all have one shape: a few of them warm up as well as all would.
    sample(engine, Shape { generated: shape.generated.min(8), ..shape })?;
    let mut samples = Samples { cost: cost(engine, shape), ..Samples::default() };
    for _ in 0..repetitions {
        let (time, outputs) = sample(engine, shape)?;
        samples.times.push(time);
        samples.ops.extend(outputs.into_iter().flat_map(|output| output.ops));
    }
    Ok(samples)
}

/// The time of one repetition, and what its timed steps brought but for their logits.
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

/// The least that one repetition has to do.
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

/// What a sequence wants of its last row: an engine that chooses tokens does, the others return the logits.
const NEXT_TOKEN: LogitsWanted = LogitsWanted::Token(TokenChoice::GREEDY);

/// What is done with each step.
type Run<'a> = &'a mut dyn FnMut(Step) -> Result<(), MeasureError>;

/// Sequences of one length, whose blocks are simply numbered in order.
struct Sequences<'a> {
    limits: &'a EngineLimits,
    shape: Shape,
    position: usize,
    steps: u64,
    random: u64,
}

impl<'a> Sequences<'a> {
    /// Sequences that have come to a position.
    fn new(limits: &'a EngineLimits, shape: Shape, position: usize) -> Self {
        Sequences { limits, shape, position, steps: 0, random: 1 }
    }

    /// The part that is timed.
    fn timed(&mut self, run: Run<'_>) -> Result<(), MeasureError> {
        self.prefill(self.shape.prompt, run)?;
        for _ in 0..self.shape.generated {
            run(self.step(0..self.shape.parallel, 1, NEXT_TOKEN))?;
            self.position += 1;
        }
        Ok(())
    }

    /// Computes tokens of one sequence after the other in steps as large as the engine takes; the last row's token comes
    /// back, or its logits, as in real use.
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

    /// The step of the next `rows` tokens of some sequences.
    fn step(&mut self, sequences: Range<usize>, rows: usize, logits: LogitsWanted) -> Step {
        let vocab_size = self.limits.vocab_size;
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
        step
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
    use cuelight_engine::engine::ExpertResult;
    use cuelight_engine::profile::OpLabel;

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
            let op = OpLabel { op: "noted", weights: String::new(), layer: None };
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
        assert_eq!((samples.times.len(), engine.steps.len()), (3, 4));
    }

    #[test]
    fn the_cost_and_the_ops_are_those_of_what_is_timed() {
        let samples = measure(&mut notebook(), Shape { prompt: 40, generated: 2, depth: 16, parallel: 1 }, 3).unwrap();
        // The notebook says that a step costs as much as its first position.
        assert_eq!(samples.cost.unwrap().memory_bytes, 16 + 48 + 56 + 57);
        assert_eq!(samples.ops.len(), 3 * 4);
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
