//! Flattens the sequences of a step into rows and validates the step, for all backends.

use std::ops::Range;

use cuelight_shaders::cost::{Cost, CostArgs};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::op::Batch;

use crate::engine::{BLOCK_TOKENS, EngineLimits, LogitsWanted, RowSamplingParams, Step};
use crate::graph::{Graph, Node, Rows, ValueId};

/// The flattened rows of the current step. Kept between steps to reuse the allocations.
#[derive(Default)]
pub(super) struct RaggedRows {
    pub tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    pub selected: Vec<u32>,
}

impl RaggedRows {
    pub fn batch<'a>(&'a self, block_tables: &'a [&'a [u32]]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            block_tables,
            selected: &self.selected,
        }
    }

    pub fn fill(&mut self, step: &Step) {
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

/// For each sequence that requests logits: its range of the selected rows, and its sampling parameters if the engine is to
/// sample the token.
pub(super) fn wanted(step: &Step) -> impl Iterator<Item = (Range<usize>, Option<RowSamplingParams>)> {
    let mut end = 0;
    step.sequences.iter().filter_map(move |sequence| {
        let start = end;
        end += sequence.logits.rows(sequence.tokens.len());
        let sampling = match sequence.logits {
            LogitsWanted::Token(params) => Some(params),
            LogitsWanted::None | LogitsWanted::Last | LogitsWanted::All => None,
        };
        (end > start).then_some((start..end, sampling))
    })
}

/// The number of rows of a value in the step.
pub(super) fn count_rows(rows: Rows, batch: &Batch<'_>) -> usize {
    match rows {
        Rows::All => batch.rows(),
        Rows::Selected => batch.selected.len(),
    }
}

/// The minimum work of an op for the step.
pub(super) fn node_cost(
    graph: &Graph,
    node: &Node,
    kernel: Kernel,
    batch: Batch<'_>,
    kv_position_bytes: &[u64],
) -> Cost {
    let widths = |values: &[ValueId]| values.iter().map(|value| graph.width(*value)).collect::<Vec<_>>();
    node.op.cost(&CostArgs {
        kernel,
        batch,
        kv_position_bytes,
        rows: count_rows(graph.input_rows(node), &batch),
        output_rows: node.outputs.first().map_or(0, |output| count_rows(graph.rows(*output), &batch)),
        input_widths: &widths(&node.inputs),
        output_widths: &widths(&node.outputs),
    })
}

/// Checks everything that the ops rely on, so that an invalid step is an error and never an out-of-bounds access.
pub(super) fn validate(step: &Step, limits: &EngineLimits) -> Result<(), String> {
    let at_most = |what: &str, found: usize, limit: usize| {
        if found > limit { Err(format!("it has {found} {what}, but the engine's limit is {limit}")) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{SequenceRows, StepId};

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
    fn invalid_steps_are_refused() {
        check(vec![rows(3, 15, &[0, 1]), rows(1, 0, &[2])], Ok(()));
        check(vec![rows(9, 0, &[0])], Err("it has 9 rows, but the engine's limit is 8"));
        check(vec![rows(2, 39, &[0, 1, 2])], Err("it has 41 tokens in a sequence, but the engine's limit is 40"));
        check(vec![rows(2, 15, &[0])], Err("sequence 0 reaches position 17 with only 1 blocks"));
        check(vec![rows(1, 0, &[4])], Err("sequence 0 uses block 4 of 4"));
        check(vec![rows(1, 0, &[3]), rows(1, 1, &[3])], Err("block 3 is written twice"));
        let mut unknown = rows(1, 0, &[0]);
        unknown.tokens[0] = 10;
        check(vec![unknown], Err("sequence 0 has token 10 of a vocabulary of 10"));
    }

    #[test]
    fn selected_rows_are_grouped_by_sequence_with_their_sampling_parameters() {
        let params = RowSamplingParams::GREEDY;
        let of = |count, logits| SequenceRows { logits, ..rows(count, 0, &[0]) };
        let requests = [LogitsWanted::All, LogitsWanted::None, LogitsWanted::Token(params), LogitsWanted::Last];
        let step = Step { id: StepId(0), sequences: requests.map(|logits| of(3, logits)).into() };
        assert_eq!(wanted(&step).collect::<Vec<_>>(), [(0..3, None), (3..4, Some(params)), (4..5, None)]);
    }

    #[test]
    fn two_sequences_may_read_a_block_that_neither_writes() {
        check(vec![rows(1, 16, &[0, 1]), rows(1, 16, &[0, 2])], Ok(()));
    }
}
