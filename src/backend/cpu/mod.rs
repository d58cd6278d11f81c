//! The CPU backend: an [`Engine`] that runs every op of a graph on a team of threads.
//!
//! It has no code per op: an op brings its own kernels ([`Op::run_cpu`]), and this
//! module gives it its slices of the arena.

pub mod team;

use std::time::Instant;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cpu::{Kernel, SharedMut};
use cuelight_shaders::op::{Batch, CpuArgs, Op};

use crate::engine::{BLOCK_TOKENS, Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepOutput};
use crate::graph::{Graph, MemoryLayout, Rows, ValueId};
use team::ThreadTeam;

/// A model on the CPU.
pub struct CpuEngine {
    graph: Graph,
    layout: MemoryLayout,
    arena: Vec<f32>,
    scratch: Vec<f32>,
    kv: KvCache,
    kernel: Kernel,
    team: ThreadTeam,
    limits: EngineLimits,
    rows: RaggedRows,
}

/// The rows of the current step, flattened; kept between steps for its memory.
#[derive(Default)]
struct RaggedRows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    selected: Vec<u32>,
}

impl CpuEngine {
    /// An engine for steps within `limits`; arranges the weights of the graph for its kernel, and tells `progress` of each
    /// op whose weights are ready.
    ///
    /// # Panics
    /// When the graph has no output.
    #[must_use]
    pub fn new(
        mut graph: Graph,
        kv: KvCache,
        kernel: Kernel,
        threads: usize,
        limits: EngineLimits,
        progress: &mut dyn FnMut(&dyn Op),
    ) -> Self {
        assert!(graph.output().is_some(), "the graph has no ops");
        let team = ThreadTeam::new(threads);
        graph.prepare_cpu(kernel, &team, progress);
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let scratch = vec![0.0; graph.scratch_len(kernel, rows, logits_rows, limits.context_tokens)];
        let layout = MemoryLayout::new(&graph, limits.max_batched_tokens, limits.max_logits_rows);
        let arena = vec![0.0; layout.arena_len()];
        CpuEngine { layout, arena, scratch, kv, kernel, team, limits, rows: RaggedRows::default(), graph }
    }

    fn run(&mut self, step: &Step) {
        let block_tables: Vec<&[u32]> = step.sequences.iter().map(|sequence| sequence.block_table.as_slice()).collect();
        let batch = Batch {
            tokens: &self.rows.tokens,
            positions: &self.rows.positions,
            sequences: &self.rows.sequences,
            block_tables: &block_tables,
            selected: &self.rows.selected,
        };
        let arena = SharedMut::new(&mut self.arena);
        let slice = |value: ValueId| {
            let rows = match self.graph.rows(value) {
                Rows::All => batch.rows(),
                Rows::Selected => batch.selected.len(),
            };
            // SAFETY: the layout keeps values that live at the same time apart, and ops run one after the other.
            unsafe { arena.slice(self.layout.offset(value), rows * self.graph.width(value)) }
        };
        for node in self.graph.nodes() {
            let input_rows = node.inputs.first().map_or(Rows::All, |input| self.graph.rows(*input));
            let rows = if input_rows == Rows::All { batch.rows() } else { batch.selected.len() };
            let inputs: Vec<&[f32]> = node.inputs.iter().map(|input| &*slice(*input)).collect();
            let mut outputs: Vec<&mut [f32]> = node.outputs.iter().map(|output| slice(*output)).collect();
            node.op.run_cpu(&mut CpuArgs {
                kernel: self.kernel,
                team: &self.team,
                batch,
                kv: &self.kv,
                rows,
                scratch: &mut self.scratch,
                inputs: &inputs,
                outputs: &mut outputs,
            });
        }
    }
}

impl Engine for CpuEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let started = Instant::now();
        validate(&step, &self.limits).map_err(|reason| EngineError::InvalidStep { step: step.id, reason })?;
        self.rows.fill(&step);
        if !self.rows.tokens.is_empty() {
            self.run(&step);
        }
        let logits = match self.graph.output() {
            Some(output) => {
                let start = self.layout.offset(output);
                self.arena[start..start + self.rows.selected.len() * self.limits.vocab_size].to_vec()
            }
            None => Vec::new(),
        };
        Ok(Progress::Done(StepOutput { id: step.id, logits, elapsed: started.elapsed() }))
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let reason = "no step of this engine waits for experts".to_owned();
        Err(EngineError::InvalidStep { step: result.step, reason })
    }
}

impl RaggedRows {
    fn fill(&mut self, step: &Step) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.selected.clear();
        for (index, sequence) in (0..).zip(&step.sequences) {
            self.tokens.extend_from_slice(&sequence.tokens);
            self.positions.extend((sequence.first_position..).take(sequence.tokens.len()));
            self.sequences.extend(std::iter::repeat_n(index, sequence.tokens.len()));
            let wanted = sequence.logits.rows(sequence.tokens.len());
            let rows = self.tokens.len();
            self.selected.extend((rows - wanted..rows).map(|row| row as u32));
        }
    }
}

/// Checks everything that the ops rely on, so that a wrong step is an error and never a stray access.
fn validate(step: &Step, limits: &EngineLimits) -> Result<(), String> {
    let at_most = |what: &str, found: usize, limit: usize| {
        if found > limit { Err(format!("it has {found} {what}, and the engine takes {limit}")) } else { Ok(()) }
    };
    at_most("rows", step.rows(), limits.max_batched_tokens)?;
    at_most("sequences", step.sequences.len(), limits.max_sequences)?;
    at_most("rows with logits", step.logits_rows(), limits.max_logits_rows)?;
    let mut written_blocks = Vec::new();
    for (index, sequence) in step.sequences.iter().enumerate() {
        let end = sequence.first_position as usize + sequence.tokens.len();
        at_most("tokens in a sequence", end, limits.context_tokens)?;
        if sequence.block_table.len() < end.div_ceil(BLOCK_TOKENS) {
            let blocks = sequence.block_table.len();
            return Err(format!("sequence {index} reaches position {end} with only {blocks} blocks"));
        }
        if let Some(block) = sequence.block_table.iter().find(|block| **block as usize >= limits.kv_blocks) {
            return Err(format!("sequence {index} uses block {block} of {}", limits.kv_blocks));
        }
        if let Some(token) = sequence.tokens.iter().find(|token| **token as usize >= limits.vocab_size) {
            return Err(format!("sequence {index} has token {token} of a vocabulary of {}", limits.vocab_size));
        }
        if !sequence.tokens.is_empty() {
            let first_block = sequence.first_position as usize / BLOCK_TOKENS;
            written_blocks.extend_from_slice(&sequence.block_table[first_block..end.div_ceil(BLOCK_TOKENS)]);
        }
    }
    written_blocks.sort_unstable();
    match written_blocks.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("block {} is written twice", pair[0])),
        None => Ok(()),
    }
}

/// What an engine's threads and kernel are called in reports.
#[must_use]
pub fn describe(kernel: Kernel, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu ({kernel}, {threads} thread{plural})")
}

/// The threads to use when nobody says: all that the process may use.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LogitsWanted, SequenceRows, StepId};

    fn limits() -> EngineLimits {
        EngineLimits {
            vocab_size: 10,
            context_tokens: 40,
            kv_blocks: 4,
            max_batched_tokens: 8,
            max_sequences: 2,
            max_logits_rows: 4,
            device: String::new(),
        }
    }

    fn rows(tokens: usize, first_position: u32, blocks: &[u32]) -> SequenceRows {
        SequenceRows {
            tokens: vec![1; tokens],
            first_position,
            block_table: blocks.to_vec(),
            logits: LogitsWanted::Last,
        }
    }

    fn check(sequences: Vec<SequenceRows>, expected: Result<(), &str>) {
        let step = Step { id: StepId(0), sequences };
        assert_eq!(validate(&step, &limits()), expected.map_err(str::to_owned));
    }

    #[test]
    fn steps_that_break_a_rule_are_refused() {
        check(vec![rows(3, 15, &[0, 1]), rows(1, 0, &[2])], Ok(()));
        check(vec![rows(9, 0, &[0])], Err("it has 9 rows, and the engine takes 8"));
        check(vec![rows(2, 39, &[0, 1, 2])], Err("it has 41 tokens in a sequence, and the engine takes 40"));
        check(vec![rows(2, 15, &[0])], Err("sequence 0 reaches position 17 with only 1 blocks"));
        check(vec![rows(1, 0, &[4])], Err("sequence 0 uses block 4 of 4"));
        check(vec![rows(1, 0, &[3]), rows(1, 1, &[3])], Err("block 3 is written twice"));
        let mut alien = rows(1, 0, &[0]);
        alien.tokens[0] = 10;
        check(vec![alien], Err("sequence 0 has token 10 of a vocabulary of 10"));
    }

    #[test]
    fn two_sequences_may_read_a_block_that_neither_writes() {
        check(vec![rows(1, 16, &[0, 1]), rows(1, 16, &[0, 2])], Ok(()));
    }
}
