//! Rows of one table that n-grams of tokens select by a hash.

use crate::cases::{Case, CaseBatch, CaseCache, CaseStep, Expected};
use crate::cost::{Cost, CostArgs};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, RowCount};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::{Format, random};
use crate::recurrent::{NO_SLOT, StateCache, StatePart, StateRun};
use crate::weight::Weight;

/// How n-grams select rows of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramHash {
    /// The factor of a token, then of the one before it, and so on: as many as the longest n-gram has tokens.
    pub multipliers: Vec<u64>,
    /// The rows of each head and the first of them. The heads of n-grams of two tokens come first.
    pub heads: Vec<(u64, u64)>,
    /// The token at which n-grams end.
    pub end: u32,
}

/// For each row the n-grams of its token and of those before it, each of which has several heads: `y[r, h]` is the row
/// `offset[h] + x mod rows[h]` of the table, where for n-grams of n tokens `x` is the exclusive or of `t[i] * multiplier[i]` for
/// i from 0 to n - 1, in 64 bits, and `t[i]` is the token i places before that of the row.
///
/// At the [end token](NgramHash::end), and at the start of a sequence, the context ends: `t[i]` is the end token for this place and
/// all before it. The token of the row itself does not end it.
///
/// - y: [rows, heads * columns of the table]; there is no input, as tokens are those of the batch
/// - The table may be in several pieces, [rows, columns] each. It may be larger than the memory: its rows are read from the file
///   when tokens select them. So the op [runs on the host](Op::runs_on_host).
/// - State: the last tokens, oldest first, plus 1; 0 before the start: as many as the longest n-gram has tokens, less 1. Float32
///   has all integers up to [`MOST_TOKENS`].
/// - Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.
#[derive(Debug, Clone)]
pub struct EmbedNgrams {
    pieces: Vec<Weight>,
    hash: NgramHash,
    part: StatePart,
}

/// The most tokens of a vocabulary.
pub const MOST_TOKENS: usize = 1 << 24;

/// The most tokens of an n-gram.
pub const LONGEST_NGRAM: usize = 16;

impl EmbedNgrams {
    /// Rows of `table` by `hash`, with the last tokens at `part`.
    ///
    /// # Errors
    /// [`ShapeError`] when the numbers of tokens and of heads, the rows of the table and the state do not fit one another.
    pub fn new(table: &Weight, hash: NgramHash, part: StatePart) -> Result<Self, ShapeError> {
        const OP: &str = "embed_ngrams";
        let longest = hash.multipliers.len();
        if !(2..=LONGEST_NGRAM).contains(&longest) {
            let (what, expected) =
                ("tokens of the longest n-gram".to_owned(), format!("between 2 and {LONGEST_NGRAM}"));
            return Err(ShapeError::Mismatch { op: OP, what, found: longest, expected });
        }
        let remainder = hash.heads.len() % (longest - 1);
        ShapeError::check(OP, format!("{} heads modulo {} lengths", hash.heads.len(), longest - 1), remainder, 0)?;
        ShapeError::check(OP, "heads without rows", hash.heads.iter().filter(|(rows, _)| *rows == 0).count(), 0)?;
        let ends = hash.heads.iter().map(|(rows, first)| rows.checked_add(*first));
        let outside = ends.filter(|end| end.is_none_or(|end| end > table.rows as u64)).count();
        ShapeError::check(OP, "heads with rows outside of the table", outside, 0)?;
        ShapeError::check(OP, "values of state", part.len, longest - 1)?;
        Ok(EmbedNgrams { pieces: table.pieces(), hash, part })
    }

    fn columns(&self) -> usize {
        self.pieces.first().map_or(0, |piece| piece.columns)
    }

    /// The token of each row of the step and those before it, newest first, as many as the longest n-gram has. The context of a row
    /// is behind that of the row before it.
    fn contexts(&self, runs: &[StateRun<'_>], tokens: &[u32], states: &StateCache) -> Vec<Context> {
        let mut contexts = Vec::with_capacity(tokens.len());
        for run in runs {
            let mut before = Context::before(run, self.part, states);
            for token in &tokens[run.first..run.first + run.rows] {
                before.push(*token);
                contexts.push(before);
            }
        }
        contexts
    }

    /// The rows of the table that a row of the step gets.
    fn selected(&self, context: &Context) -> impl Iterator<Item = usize> {
        let NgramHash { multipliers, heads, end } = &self.hash;
        let of_length = heads.len() / (multipliers.len() - 1);
        let mut tokens = context.tokens_until(*end, multipliers.len()).zip(multipliers);
        let mut next =
            move || tokens.next().map_or(0, |(token, multiplier)| u64::from(token).wrapping_mul(*multiplier));
        let mut mixed = next();
        heads.chunks(of_length.max(1)).flat_map(move |of_length| {
            mixed ^= next();
            let hash = mixed;
            // The rows of heads are inside of the table.
            of_length.iter().map(move |(rows, first)| (first + hash % rows) as usize)
        })
    }

    /// The piece of a row, and its number there.
    fn piece_of(&self, row: usize) -> (&Weight, usize) {
        // All but the last have as many rows.
        let rows = self.pieces[0].rows;
        (&self.pieces[row / rows], row % rows)
    }
}

/// The last tokens of a sequence, newest first.
#[derive(Debug, Clone, Copy)]
struct Context {
    tokens: [Option<u32>; LONGEST_NGRAM],
}

impl Context {
    /// The tokens before a run.
    fn before(run: &StateRun<'_>, part: StatePart, states: &StateCache) -> Self {
        let mut tokens = [None; LONGEST_NGRAM];
        if run.from != NO_SLOT {
            // SAFETY: nothing writes to slots while contexts are made.
            let stored = unsafe { states.get(part, run.from, 0, part.len) };
            for (token, stored) in tokens.iter_mut().zip(stored.iter().rev()) {
                *token = (*stored as u32).checked_sub(1);
            }
        }
        Context { tokens }
    }

    fn push(&mut self, token: u32) {
        self.tokens.rotate_right(1);
        self.tokens[0] = Some(token);
    }

    /// As many tokens, newest first. From the first of those before the newest that is `end` or missing on, all are `end`.
    fn tokens_until(&self, end: u32, count: usize) -> impl Iterator<Item = u32> {
        let mut is_cut = false;
        self.tokens.into_iter().take(count).enumerate().map(move |(index, token)| {
            is_cut |= token.is_none() || (index > 0 && token == Some(end));
            if is_cut { end } else { token.unwrap_or(end) }
        })
    }

    /// Writes the newest tokens as state.
    fn store(&self, state: &mut [f32]) {
        for (stored, token) in state.iter_mut().rev().zip(self.tokens) {
            *stored = token.map_or(0.0, |token| (token + 1) as f32);
        }
    }
}

impl Op for EmbedNgrams {
    fn name(&self) -> &'static str {
        "embed_ngrams"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 0)?;
        Ok(vec![self.hash.heads.len() * self.columns()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn runs_on_host(&self) -> bool {
        true
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let row_bytes = self.pieces.first().map_or(0, Weight::row_bytes);
        let memory_bytes = (args.batch.rows() * self.hash.heads.len() * row_bytes) as u64;
        let float_operations = args.output_values() as u64;
        Cost { memory_bytes, activation_bytes: args.activation_bytes(), float_operations, ..Cost::default() }
    }

    /// # Panics
    /// When the step has slots that do not exist.
    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        const ROWS_PER_TASK: usize = 4;
        let (runs, columns) = (StateRun::all(&args.batch), self.columns());
        let contexts = self.contexts(&runs, args.batch.tokens, args.states);
        for run in &runs {
            for (slot, context) in run.to.iter().zip(&contexts[run.first..]).filter(|(slot, _)| **slot != NO_SLOT) {
                // SAFETY: no other thread uses these values.
                context.store(unsafe { args.states.get_mut(self.part, *slot, 0, self.part.len) });
            }
        }
        let width = self.hash.heads.len() * columns;
        for_each_chunk(args.team, args.outputs[0], ROWS_PER_TASK * width, &|task, output| {
            let contexts = &contexts[task * ROWS_PER_TASK..][..output.len() / width];
            let selected: Vec<_> =
                contexts.iter().flat_map(|context| self.selected(context)).map(|row| self.piece_of(row)).collect();
            // The system reads them together, not one after the other.
            selected.iter().for_each(|(piece, row)| piece.prefetch_row(*row));
            for ((piece, row), output) in selected.into_iter().zip(output.chunks_exact_mut(columns)) {
                piece.format.dequantize(piece.row(row), output);
            }
        });
    }

    /// Nothing: the op runs on the host.
    fn dispatches(&self, _: &GpuArgs<'_>) -> Vec<Dispatch> {
        Vec::new()
    }
}

/// The rows of the table of the last of these tokens of a sequence, in float64.
#[must_use]
pub fn reference(hash: &NgramHash, table: &[f32], columns: usize, tokens: &[u32]) -> Vec<f64> {
    let before = &tokens[..tokens.len() - 1];
    let start = before.iter().rposition(|token| *token == hash.end).map_or(0, |end| end + 1);
    let token = |back: usize| {
        let index = (tokens.len() - 1).checked_sub(back).filter(|index| back == 0 || *index >= start);
        u128::from(index.map_or(hash.end, |index| tokens[index]))
    };
    let of_length = hash.heads.len() / (hash.multipliers.len() - 1);
    let row = |(head, (rows, first)): (usize, &(u64, u64))| {
        let terms = (0..head / of_length + 2).map(|back| token(back) * u128::from(hash.multipliers[back]));
        let mixed = terms.fold(0, |mixed, term| mixed ^ (term & u128::from(u64::MAX)));
        (u128::from(*first) + mixed % u128::from(*rows)) as usize
    };
    let rows = hash.heads.iter().enumerate().map(row);
    rows.flat_map(|row| table[row * columns..][..columns].iter().map(|value| f64::from(*value))).collect()
}

/// The hash of the cases.
fn hash_of(longest: usize, of_length: usize) -> NgramHash {
    const SIZES: [u64; 6] = [11, 13, 17, 19, 23, 29];
    let mut first = 0;
    let head = |head: usize| {
        let rows = SIZES[head % SIZES.len()];
        first += rows;
        (rows, first - rows)
    };
    NgramHash {
        multipliers: (0..longest as u64).map(|token| 0x0000_1234_5678_9abd * (2 * token + 3)).collect(),
        heads: (0..(longest - 1) * of_length).map(head).collect(),
        end: 3,
    }
}

/// The expected results: n-grams of two and three tokens that the end token cuts, in chunks, with checkpoints.
#[must_use]
pub fn cases() -> Vec<Case> {
    let in_blocks = Format::ALL.iter().copied().filter(|format| format.block_len() == 32).take(1);
    let plain = [(3, 2, 48, Format::F16), (2, 3, 33, Format::F32)];
    plain.into_iter().chain(in_blocks.map(|format| (3, 1, 64, format))).map(case).collect()
}

/// The tokens of a sequence: the end token twice, once at the start of a step.
const TOKENS: [u32; 12] = [7, 90_001, 3, 5, 7, 7, 11, 3, 3, 5, 248_000, 2];

/// The rows before a step, its rows, the slot before it and those after some of its rows.
type Run = (usize, usize, u32, &'static [(usize, u32)]);

fn case((longest, of_length, columns, format): (usize, usize, usize, Format)) -> Case {
    let hash = hash_of(longest, of_length);
    let rows = hash.heads.iter().map(|(rows, _)| *rows as usize).sum();
    let table = random::weight("table", format, rows, columns, 7);
    let part = StatePart { layer: 1, start: 3, len: longest - 1 };
    let op = EmbedNgrams::new(&table, hash.clone(), part).expect("the shapes fit");
    let table = table.to_f32();
    let runs: [Run; 6] = [
        (0, 1, NO_SLOT, &[(1, 0)]),
        (1, 6, 0, &[(1, 1), (6, 0)]),
        (7, 5, 0, &[(5, 2)]),
        (2, 3, 1, &[(3, 1)]),
        (5, 7, 1, &[(7, 1)]),
        (0, 12, NO_SLOT, &[(12, 0)]),
    ];
    let step = |(first, count, from, to): Run| {
        let mut state_to = vec![NO_SLOT; count];
        to.iter().for_each(|(rows, slot)| state_to[rows - 1] = *slot);
        let batch = CaseBatch {
            tokens: TOKENS[first..first + count].into(),
            positions: (first as u32..).take(count).collect(),
            state_from: vec![from],
            state_to,
            ..CaseBatch::of_rows(count)
        };
        let of_row = |row: usize| reference(&hash, &table, columns, &TOKENS[..first + row + 1]);
        let expected = vec![Expected::within(0.0, (0..count).flat_map(of_row))];
        CaseStep { batch, rows: RowCount::All(count), inputs: Vec::new(), expected }
    };
    let steps = runs.map(step).into();
    let cache = Some(CaseCache::of_states(vec![2, longest + 4], 3));
    Case { name: format!("{longest} tokens, {of_length} heads each, {format}"), op: Box::new(op), cache, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_in_pieces_has_the_same_rows() {
        let hash = hash_of(3, 2);
        let table = random::weight("table", Format::F32, 60, 8, 1);
        let part = StatePart { layer: 0, start: 0, len: 2 };
        let whole = EmbedNgrams::new(&table, hash, part).unwrap();
        let pieces = [0..25, 25..50, 50..60].map(|rows| table.slice_rows(rows)).into();
        let parts = EmbedNgrams { pieces, ..whole.clone() };
        for row in [0, 24, 25, 49, 59] {
            let of = |op: &EmbedNgrams| {
                let (piece, row) = op.piece_of(row);
                piece.row(row).to_vec()
            };
            assert_eq!(of(&whole), of(&parts));
        }
    }

    #[test]
    fn heads_outside_of_the_table_are_refused() {
        let error = |rows: usize, part: usize, change: &dyn Fn(&mut NgramHash)| {
            let mut hash = hash_of(3, 2);
            change(&mut hash);
            let table = random::weight("table", Format::F32, rows, 8, 1);
            let part = StatePart { layer: 0, start: 0, len: part };
            EmbedNgrams::new(&table, hash, part).err().map(|error| error.to_string())
        };
        assert_eq!(error(60, 2, &|_| {}), None);
        let outside = "embed_ngrams: heads with rows outside of the table is 1, but must be 0";
        assert_eq!(error(59, 2, &|_| {}).as_deref(), Some(outside));
        assert_eq!(error(60, 2, &|hash| hash.heads[0].1 = u64::MAX).as_deref(), Some(outside));
        assert!(error(60, 2, &|hash| hash.heads[3].0 = 0).is_some());
        assert!(error(60, 2, &|hash| hash.heads.truncate(3)).is_some());
        assert!(error(60, 3, &|_| {}).is_some());
        assert!(error(60, 2, &|hash| hash.multipliers.truncate(1)).is_some());
    }
}
