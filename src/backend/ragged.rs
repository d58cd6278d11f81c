//! Flattens the sequences of a step into rows and validates the step, for all backends.

use std::ops::Range;

use cuelight_shaders::cost::{Cost, CostArgs};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::kv::PositionBytes;
use cuelight_shaders::op::{Batch, DenoiseParams, NO_SECOND_TEXT, Sight};
use cuelight_shaders::recurrent::NO_SLOT;

use super::encoder_rows;
use crate::engine::{
    AdapterUse, BLOCK_TOKENS, Canvas, EmbeddingRows, EngineLimits, LogitsWanted, RowSamplingParams, SequenceRows,
    SlotId, Step, WindowLimits,
};
use crate::graph::{Graph, Node, Rows, ValueId};

/// The flattened rows of the current step. Kept between steps to reuse the allocations.
#[derive(Default)]
pub(super) struct RaggedRows {
    pub tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    pub selected: Vec<u32>,
    pub hidden: Vec<u32>,
    state_from: Vec<u32>,
    state_to: Vec<u32>,
    sights: Vec<Sight>,
    rope_positions: Vec<[u32; 3]>,
    second_texts: Vec<u32>,
    denoised: Vec<DenoiseParams>,
}

/// What the sequences of a step have.
pub(super) struct OfSequences<'a> {
    block_tables: Vec<&'a [u32]>,
    window_tables: Vec<&'a [u32]>,
    pub adapters: Vec<Option<&'a AdapterUse>>,
}

impl<'a> OfSequences<'a> {
    pub fn new(step: &'a Step) -> Self {
        let (block_tables, window_tables) = (step.block_tables(), step.window_tables());
        OfSequences { block_tables, window_tables, adapters: step.adapters() }
    }
}

impl RaggedRows {
    pub fn batch<'a>(&'a self, of_sequences: &'a OfSequences<'a>) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            block_tables: &of_sequences.block_tables,
            window_tables: &of_sequences.window_tables,
            selected: &self.selected,
            hidden: &self.hidden,
            state_from: &self.state_from,
            state_to: &self.state_to,
            adapters: &of_sequences.adapters,
            adapter_slots: &[],
            sights: &self.sights,
            rope_positions: &self.rope_positions,
            second_texts: &self.second_texts,
            denoised: &self.denoised,
        }
    }

    pub fn fill(&mut self, step: &Step) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.selected.clear();
        self.hidden.clear();
        for (index, sequence) in (0..).zip(&step.sequences) {
            let first = self.tokens.len();
            self.tokens.extend_from_slice(&sequence.tokens);
            // Rows with embeddings of their own have those of no token in other tables: those of token 0, which is padding.
            for EmbeddingRows { first: of_sequence, range, .. } in &sequence.embeddings {
                self.tokens[first + of_sequence..][..range.len()].fill(0);
            }
            self.positions.extend((sequence.first_position..).take(sequence.tokens.len()));
            self.sequences.extend(std::iter::repeat_n(index, sequence.tokens.len()));
            let (own, rows) = (sequence.tokens.len(), self.tokens.len());
            let wanted = sequence.logits.rows(own);
            self.selected.extend((rows - wanted..rows).map(|row| row as u32));
            self.hidden.extend(sequence.hidden_rows().map(|row| (first + row) as u32));
        }
        self.fill_state(step);
        self.fill_sights(step);
        self.fill_rope_positions(step);
        self.fill_denoised(step);
        self.fill_second_texts(step);
    }

    fn fill_sights(&mut self, step: &Step) {
        self.sights.clear();
        self.sights.extend(step.sequences.iter().map(SequenceRows::sight));
        if self.sights.iter().all(|sight| *sight == Sight::Before) {
            self.sights.clear();
        }
    }

    fn fill_rope_positions(&mut self, step: &Step) {
        self.rope_positions.clear();
        if step.sequences.iter().all(|sequence| sequence.rope_positions.is_empty()) {
            return;
        }
        for SequenceRows { tokens, first_position, rope_positions, .. } in &step.sequences {
            match &rope_positions[..] {
                [] => self.rope_positions.extend((*first_position..).take(tokens.len()).map(|position| [position; 3])),
                given => self.rope_positions.extend_from_slice(given),
            }
        }
    }

    fn fill_denoised(&mut self, step: &Step) {
        self.denoised.clear();
        for SequenceRows { canvas, .. } in &step.sequences {
            let Some(Canvas { temperature, sampling, draws }) = canvas else { continue };
            let of_row = |random: &u64| DenoiseParams {
                temperature: *temperature,
                sampling: RowSamplingParams { random: *random, ..*sampling },
            };
            self.denoised.extend(draws.iter().map(of_row));
        }
    }

    fn fill_second_texts(&mut self, step: &Step) {
        self.second_texts.clear();
        if step.sequences.iter().any(|sequence| sequence.second_text.is_some()) {
            let starts = step.sequences.iter().map(|sequence| sequence.second_text.unwrap_or(NO_SECOND_TEXT));
            self.second_texts.extend(starts);
        }
    }

    fn fill_state(&mut self, step: &Step) {
        self.state_from.clear();
        self.state_to.clear();
        if step.sequences.iter().all(|sequence| sequence.state.to.is_empty()) {
            return;
        }
        for SequenceRows { tokens, state, .. } in &step.sequences {
            self.state_from.push(state.from.unwrap_or(NO_SLOT));
            let first = self.state_to.len();
            self.state_to.resize(first + tokens.len(), NO_SLOT);
            for (rows, slot) in &state.to {
                self.state_to[first + *rows as usize - 1] = *slot;
            }
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
            LogitsWanted::None | LogitsWanted::Last | LogitsWanted::All | LogitsWanted::Hidden(_) => None,
        };
        (end > start).then_some((start..end, sampling))
    })
}

/// The number of rows of a value in the step.
pub(super) fn count_rows(rows: Rows, batch: &Batch<'_>) -> usize {
    match rows {
        Rows::All => batch.rows(),
        Rows::Selected => batch.selected.len(),
        Rows::Hidden => batch.hidden.len(),
    }
}

/// The minimum work of an op for the step.
pub(super) fn node_cost(
    graph: &Graph,
    node: &Node,
    kernel: Kernel,
    batch: Batch<'_>,
    kv_position_bytes: &[PositionBytes],
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
    at_most("rows with hidden values", step.hidden_rows(), limits.hidden.max_rows)?;
    at_most("adapters", step.distinct_adapters().len(), limits.adapters.slots)?;
    let (mut written_blocks, mut written_in_windows) = (Vec::new(), Vec::new());
    for (index, sequence) in step.sequences.iter().enumerate() {
        let end = sequence.first_position as usize + sequence.tokens.len();
        at_most("tokens in a sequence", end, limits.context_tokens)?;
        if limits.hidden.whole_sequences && sequence.first_position > 0 {
            return Err(format!("sequence {index} continues, but its rows see later rows"));
        }
        if sequence.block_table.len() < end.div_ceil(BLOCK_TOKENS) {
            let blocks = sequence.block_table.len();
            return Err(format!("sequence {index} reaches position {end} with only {blocks} blocks"));
        }
        if let Some(block) = sequence.block_table.iter().find(|block| **block as usize >= limits.kv_blocks) {
            return Err(format!("sequence {index} uses block {block} of {}", limits.kv_blocks));
        }
        if let Some(token) = sequence.tokens.iter().find(|token| **token as usize >= limits.row_tokens()) {
            return Err(format!("sequence {index} has token {token} of a vocabulary of {}", limits.row_tokens()));
        }
        validate_canvas(index, sequence, limits)?;
        validate_embeddings(index, sequence, limits)?;
        if ![0, sequence.tokens.len()].contains(&sequence.rope_positions.len()) {
            let (rows, given) = (sequence.tokens.len(), sequence.rope_positions.len());
            return Err(format!("sequence {index} has {rows} rows, but {given} positions on axes"));
        }
        let given = match (limits.canvas, &sequence.canvas) {
            (Some(limits), Some(_)) if !sequence.hidden.is_empty() => sequence.tokens.len() * limits.width,
            _ => sequence.tokens.len() * limits.hidden.reads.width(),
        };
        if sequence.hidden.len() != given {
            let found = sequence.hidden.len();
            return Err(format!("sequence {index} has {found} hidden values, but the engine reads {given}"));
        }
        if let Some(rank) = sequence.adapter.as_ref().map(|used| used.adapter.max_rank()) {
            at_most("ranks in an adapter", rank, limits.adapters.max_rank)?;
        }
        if !sequence.tokens.is_empty() {
            let first_block = sequence.first_position as usize / BLOCK_TOKENS;
            let blocks = first_block..end.div_ceil(BLOCK_TOKENS);
            written_blocks.extend_from_slice(&sequence.block_table[blocks.clone()]);
            validate_window(index, sequence, limits.window)?;
            written_in_windows.extend(sequence.window_table.get(blocks).into_iter().flatten());
        }
    }
    validate_written(written_blocks, "block")?;
    validate_written(written_in_windows, "block of windows")?;
    validate_state(step, limits.state_slots)
}

/// Checks that no block is written twice.
fn validate_written(mut blocks: Vec<u32>, what: &str) -> Result<(), String> {
    blocks.sort_unstable();
    match blocks.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{what} {} is written twice", pair[0])),
        None => Ok(()),
    }
}

/// Checks the blocks of a sequence in layers that keep a window.
fn validate_window(index: usize, sequence: &SequenceRows, limits: Option<WindowLimits>) -> Result<(), String> {
    let (table, expected) = (&sequence.window_table, limits.map_or(0, |_| sequence.block_table.len()));
    if table.len() != expected {
        return Err(format!("sequence {index} has {} blocks of windows instead of {expected}", table.len()));
    }
    let blocks = limits.map_or(0, |limits| limits.blocks);
    match table.iter().find(|block| **block as usize >= blocks) {
        Some(block) => Err(format!("sequence {index} uses block {block} of {blocks} of windows")),
        None => Ok(()),
    }
}

/// Checks that rows return logits, or are a canvas, as the engine computes them.
fn validate_canvas(index: usize, sequence: &SequenceRows, limits: &EngineLimits) -> Result<(), String> {
    let returns_logits = sequence.logits.rows(sequence.tokens.len()) > 0;
    match (&sequence.canvas, limits.canvas) {
        (None, None) => Ok(()),
        (None, Some(_)) if !returns_logits => Ok(()),
        (None, Some(_)) => Err(format!("sequence {index} wants logits, but the engine denoises canvases")),
        (Some(_), None) => Err(format!("sequence {index} is a canvas, but the engine denoises none")),
        (Some(canvas), Some(_)) => {
            let (rows, draws) = (sequence.tokens.len(), canvas.draws.len());
            let is_usable = draws == rows && sequence.logits == LogitsWanted::All && canvas.temperature > 0.0;
            if is_usable {
                Ok(())
            } else {
                Err(format!("sequence {index} is a canvas of {rows} rows and {draws} draws"))
            }
        }
    }
}

/// Checks the slots of recurrent state.
fn validate_state(step: &Step, slots: usize) -> Result<(), String> {
    let mut written: Vec<(SlotId, usize)> = Vec::new();
    for (index, SequenceRows { tokens, state, .. }) in step.sequences.iter().enumerate() {
        let named = state.from.iter().chain(state.to.iter().map(|(_, slot)| slot));
        if let Some(slot) = named.into_iter().find(|slot| **slot as usize >= slots) {
            return Err(format!("sequence {index} uses slot {slot} of {slots}"));
        }
        let rows: Vec<usize> = state.to.iter().map(|(rows, _)| *rows as usize).collect();
        let is_ascending = rows.first() != Some(&0) && rows.is_sorted_by(|a, b| a < b);
        let last = (slots > 0 && !tokens.is_empty()).then_some(tokens.len());
        if !is_ascending || rows.last().copied() != last {
            return Err(format!("sequence {index} of {} rows stores its state after rows {rows:?}", tokens.len()));
        }
        written.extend(state.to.iter().map(|(_, slot)| (*slot, index)));
    }
    written.sort_unstable();
    if let Some(pair) = written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("slot {} is written twice", pair[0].0));
    }
    let writer = |slot| written.binary_search_by_key(&slot, |(slot, _)| *slot).ok().map(|found| written[found].1);
    for (index, from) in step.sequences.iter().enumerate().filter_map(|(index, s)| Some((index, s.state.from?))) {
        if writer(from).is_some_and(|writer| writer != index) {
            return Err(format!("slot {from}, which sequence {index} reads, is written by another"));
        }
    }
    Ok(())
}

/// Checks that given embeddings belong to rows, ascending, and exist.
fn validate_embeddings(index: usize, sequence: &SequenceRows, limits: &EngineLimits) -> Result<(), String> {
    let width = match limits.embeddings {
        Some(limits) => limits.values(),
        None if sequence.embeddings.is_empty() => return Ok(()),
        None => return Err(format!("sequence {index} gives embeddings, but the engine takes none")),
    };
    encoder_rows::validate(index, sequence, limits.embeddings.map_or(0, |limits| limits.leading_rows))?;
    let mut next = 0;
    for EmbeddingRows { first, values, range } in &sequence.embeddings {
        let given = values.len() / width;
        if range.start > range.end || range.end > given || !values.len().is_multiple_of(width) {
            return Err(format!("sequence {index} uses the embeddings {range:?} of {given}"));
        }
        if *first < next || first + range.len() > sequence.tokens.len() {
            let rows = sequence.tokens.len();
            return Err(format!("sequence {index} gives {} embeddings from row {first} of {rows} on", range.len()));
        }
        next = first + range.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CanvasLimits, EmbeddingLimits, HiddenInput, HiddenLimits, HiddenRows, SequenceRows, StepId};

    fn limits() -> EngineLimits {
        EngineLimits {
            vocab_size: 10,
            context_tokens: 40,
            kv_blocks: 4,
            max_batched_tokens: 8,
            max_sequences: 2,
            max_logits_rows: 4,
            hidden: HiddenLimits { width: 8, max_rows: 2, ..HiddenLimits::default() },
            ..EngineLimits::default()
        }
    }

    fn rows(tokens: usize, first_position: u32, blocks: &[u32]) -> SequenceRows {
        SequenceRows {
            tokens: vec![1; tokens],
            first_position,
            block_table: blocks.to_vec(),
            logits: LogitsWanted::Last,
            ..SequenceRows::default()
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
        let mut hidden = rows(3, 0, &[0]);
        hidden.logits = LogitsWanted::Hidden(HiddenRows::All);
        check(vec![hidden], Err("it has 3 rows with hidden values, but the engine's limit is 2"));
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
    fn a_sequence_whose_rows_see_later_rows_has_one_step() {
        let limits = EngineLimits { hidden: HiddenLimits { whole_sequences: true, ..limits().hidden }, ..limits() };
        let validated = |first| validate(&Step { id: StepId(0), sequences: vec![rows(1, first, &[0])] }, &limits);
        assert_eq!(validated(0), Ok(()));
        assert_eq!(validated(1).unwrap_err(), "sequence 0 continues, but its rows see later rows");
    }

    #[test]
    fn hidden_rows_are_counted_within_the_step() {
        let of = |rows| SequenceRows { logits: LogitsWanted::Hidden(rows), ..self::rows(3, 0, &[0]) };
        let step =
            Step { id: StepId(0), sequences: [HiddenRows::Last, HiddenRows::First, HiddenRows::All].map(of).into() };
        let mut flat = RaggedRows::default();
        flat.fill(&step);
        assert_eq!((flat.hidden, flat.selected), (vec![2, 3, 6, 7, 8], vec![]));
    }

    #[test]
    fn hidden_rows_may_be_returned_next_to_logits() {
        let with_hidden = SequenceRows { returns_hidden: true, ..rows(2, 0, &[0]) };
        let mut flat = RaggedRows::default();
        flat.fill(&Step { id: StepId(0), sequences: vec![rows(3, 0, &[0]), with_hidden] });
        assert_eq!((flat.hidden, flat.selected), (vec![3, 4], vec![2, 4]));
    }

    #[test]
    fn an_engine_that_reads_hidden_values_gets_a_row_for_each_token() {
        check(
            vec![SequenceRows { hidden: vec![0.0; 8], ..rows(1, 0, &[0]) }],
            Err("sequence 0 has 8 hidden values, but the engine reads 0"),
        );
        let limits = EngineLimits {
            hidden: HiddenLimits { reads: HiddenInput { of_model: 8, own: 0 }, ..limits().hidden },
            ..limits()
        };
        let given = |values| SequenceRows { hidden: vec![0.0; values], ..rows(2, 0, &[0]) };
        let validated = |values| validate(&Step { id: StepId(0), sequences: vec![given(values)] }, &limits);
        assert_eq!(validated(16), Ok(()));
        assert_eq!(validated(8).unwrap_err(), "sequence 0 has 8 hidden values, but the engine reads 16");
    }

    #[test]
    fn a_canvas_has_a_draw_for_each_row_and_an_engine_that_denoises() {
        let canvas = |draws| Canvas { temperature: 0.5, sampling: RowSamplingParams::GREEDY, draws: vec![7; draws] };
        let of = |draws| SequenceRows { canvas: Some(canvas(draws)), logits: LogitsWanted::All, ..rows(2, 0, &[0]) };
        check(vec![of(2)], Err("sequence 0 is a canvas, but the engine denoises none"));
        let limits = EngineLimits { canvas: Some(CanvasLimits { tokens: 2, width: 3 }), ..limits() };
        let validated = |rows| validate(&Step { id: StepId(0), sequences: vec![rows] }, &limits);
        assert_eq!(validated(of(2)), Ok(()));
        assert_eq!(validated(SequenceRows { hidden: vec![0.0; 6], ..of(2) }), Ok(()));
        assert_eq!(validated(SequenceRows { logits: LogitsWanted::None, ..rows(2, 0, &[0]) }), Ok(()));
        let refused = |rows| validated(rows).unwrap_err();
        assert_eq!(refused(of(1)), "sequence 0 is a canvas of 2 rows and 1 draws");
        assert_eq!(refused(rows(2, 0, &[0])), "sequence 0 wants logits, but the engine denoises canvases");
        let short = SequenceRows { hidden: vec![0.0; 3], ..of(2) };
        assert_eq!(refused(short), "sequence 0 has 3 hidden values, but the engine reads 6");
    }

    #[test]
    fn rows_that_are_given_no_hidden_values_have_zeros() {
        let limits = EngineLimits { canvas: Some(CanvasLimits { tokens: 2, width: 2 }), ..limits() };
        let given = SequenceRows { hidden: vec![1.0; 4], ..rows(2, 0, &[0]) };
        let step = Step { id: StepId(0), sequences: vec![rows(1, 0, &[1]), given] };
        assert_eq!(step.graph_inputs(&limits), [[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]]);
    }

    #[test]
    fn given_embeddings_belong_to_rows_and_exist() {
        let limits =
            EngineLimits { embeddings: Some(EmbeddingLimits { width: 2, ..EmbeddingLimits::default() }), ..limits() };
        let given = |first, range| EmbeddingRows { first, values: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].into(), range };
        let of = |embeddings| SequenceRows { embeddings, ..rows(4, 0, &[0]) };
        let validated = |embeddings| validate(&Step { id: StepId(0), sequences: vec![of(embeddings)] }, &limits);
        assert_eq!(validated(vec![given(0, 0..3), given(3, 2..3)]), Ok(()));
        let refused = |embeddings| validated(embeddings).unwrap_err();
        assert_eq!(refused(vec![given(0, 2..4)]), "sequence 0 uses the embeddings 2..4 of 3");
        assert_eq!(refused(vec![given(2, 0..3)]), "sequence 0 gives 3 embeddings from row 2 of 4 on");
        assert_eq!(refused(vec![given(1, 0..2), given(2, 0..1)]), "sequence 0 gives 1 embeddings from row 2 of 4 on");
        check(vec![of(vec![given(0, 0..1)])], Err("sequence 0 gives embeddings, but the engine takes none"));
        let step = Step { id: StepId(0), sequences: vec![rows(1, 0, &[1]), of(vec![given(1, 1..3)])] };
        let mut ragged = RaggedRows::default();
        ragged.fill(&step);
        assert_eq!(ragged.tokens, [1, 1, 0, 0, 1], "rows with embeddings count as padding");
        let none = [0.0; 3];
        let expected = [none, none, [1.0, 3.0, 4.0], [1.0, 5.0, 6.0], none].concat();
        assert_eq!(step.graph_inputs(&limits), [expected]);
        let deep =
            EngineLimits { embeddings: Some(EmbeddingLimits { width: 1, deep_layers: 1, leading_rows: 0 }), ..limits };
        let first = [0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 1.0, 5.0, 0.0, 0.0];
        assert_eq!(step.graph_inputs(&deep), [&first[..], &[0.0, 0.0, 4.0, 6.0, 0.0]]);
    }

    #[test]
    fn rows_without_positions_on_axes_have_that_in_the_sequence() {
        let given = SequenceRows { rope_positions: vec![[5, 6, 7], [5, 6, 8]], ..rows(2, 3, &[0]) };
        let mut ragged = RaggedRows::default();
        ragged.fill(&Step { id: StepId(0), sequences: vec![rows(2, 1, &[1]), given.clone()] });
        assert_eq!(ragged.rope_positions, [[1; 3], [2; 3], [5, 6, 7], [5, 6, 8]]);
        check(
            vec![SequenceRows { tokens: vec![0; 3], ..given }],
            Err("sequence 0 has 3 rows, but 2 positions on axes"),
        );
        ragged.fill(&Step { id: StepId(0), sequences: vec![rows(2, 1, &[1])] });
        assert!(ragged.rope_positions.is_empty());
    }

    #[test]
    fn two_sequences_may_read_a_block_that_neither_writes() {
        check(vec![rows(1, 16, &[0, 1]), rows(1, 16, &[0, 2])], Ok(()));
    }
}
