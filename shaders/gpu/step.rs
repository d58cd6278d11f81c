//! A step's rows in device memory: the data that `Step` in `gpu/common.glsl` points to.
//!
//! A header with the counts and the addresses of the arrays, then the arrays. The addresses never change: a step writes
//! only its counts and the used part of each array.

use std::ops::Range;

use crate::lora::adapter::AdapterUse;
use crate::op::{Batch, DenoiseParams, NO_SECOND_TEXT, Sight};
use crate::sample_token::{PARAMS_WORDS, inverse, words};

/// Words of the counts in the header: rows, selected rows, runs of rows, hidden rows. Their number aligns the addresses.
const COUNTS: usize = 4;

/// Words of the header: the counts, and the address of each array.
const HEADER_WORDS: usize = COUNTS + ARRAYS * 2;

/// The number of arrays.
const ARRAYS: usize = 15;

/// The entry of a sequence without an adapter.
const NO_ADAPTER: u32 = u32::MAX;

/// Words of where the blocks of a sequence start: those of all layers, and those of layers that keep windows.
const STARTS: usize = 2;

/// Words of what the rows of a sequence see of each other: the kind, and the position of the first.
const SIGHT_WORDS: usize = 2;

/// Words of the adapter of a sequence: its slot, and the factor on its changes.
const ADAPTER_WORDS: usize = 2;

/// Words of the parameters of a row that is denoised: how its token is sampled, and the factor of its logits.
pub(crate) const DENOISE_WORDS: usize = PARAMS_WORDS + 1;

/// The layout of the arrays for steps up to a maximum size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepLayout {
    max_rows: usize,
    max_selected: usize,
    max_hidden: usize,
    max_sequences: usize,
    max_table_entries: usize,
}

impl StepLayout {
    /// The layout for steps of at most `max_rows` rows, `max_selected` rows with logits, `max_hidden` rows with hidden
    /// values, `max_sequences` sequences, and `max_table_entries` entries in the tables of all sequences together.
    #[must_use]
    pub fn new(
        max_rows: usize,
        [max_selected, max_hidden]: [usize; 2],
        max_sequences: usize,
        max_table_entries: usize,
    ) -> Self {
        StepLayout { max_rows, max_selected, max_hidden, max_sequences, max_table_entries }
    }

    /// Words of each array: tokens, positions, sequences, selection, table starts, tables, run starts, state slots,
    /// hidden selection, sights, parameters of denoising, starts of second texts, positions
    /// of axes, adapters.
    fn lengths(&self) -> [usize; ARRAYS] {
        let (rows, sequences, entries) = (self.max_rows, self.max_sequences, self.max_table_entries);
        let (selected, hidden) = (self.max_selected, self.max_hidden);
        let (sights, denoised, adapters) =
            (sequences * SIGHT_WORDS, selected * DENOISE_WORDS, sequences * ADAPTER_WORDS);
        [
            rows,
            rows,
            rows,
            selected,
            sequences * STARTS,
            entries,
            sequences,
            sequences,
            rows,
            hidden,
            sights,
            denoised,
            sequences,
            rows * 3,
            adapters,
        ]
    }

    /// The start of each array, in words.
    fn starts(&self) -> [usize; ARRAYS] {
        let mut next = HEADER_WORDS;
        self.lengths().map(|length| {
            let start = next;
            next += length.max(1);
            start
        })
    }

    /// Bytes of the header and all arrays.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let words = HEADER_WORDS + self.lengths().iter().map(|length| (*length).max(1)).sum::<usize>();
        (words * size_of::<u32>()) as u64
    }

    /// Writes the addresses of the arrays into `words`, which will be located at `address` on the device.
    ///
    /// # Panics
    /// When `words` is shorter than [`StepLayout::bytes`].
    pub fn write_header(&self, address: u64, words: &mut [u32]) {
        for (pointer, start) in words[COUNTS..HEADER_WORDS].chunks_exact_mut(2).zip(self.starts()) {
            let array = address + (start * size_of::<u32>()) as u64;
            pointer.copy_from_slice(&[array as u32, (array >> 32) as u32]);
        }
    }

    /// Writes a step into `words` after the header. Returns the ranges of words that it wrote.
    ///
    /// # Panics
    /// When the step is larger than the layout.
    pub fn write(&self, batch: &Batch<'_>, words: &mut [u32]) -> Vec<Range<usize>> {
        let count = |count: usize| u32::try_from(count).expect("rows are counted in 32 bits");
        let run_starts: Vec<u32> = batch.run_starts().map(count).collect();
        let counts = [batch.rows(), batch.selected.len(), run_starts.len(), batch.hidden.len()];
        words[..COUNTS].copy_from_slice(&counts.map(count));
        let (table_starts, tables) = block_tables(batch);
        let Batch { tokens, positions, sequences, selected, hidden, state_from, state_to, .. } = *batch;
        let (sights, denoised) = (sight_words(batch), denoise_words(batch.denoised));
        let (second_texts, adapters) = (second_text_starts(batch), adapter_words(batch));
        let rope_positions: Vec<u32> =
            (0..batch.rows()).flat_map(|row| [0, 1, 2].map(|axis| batch.rope_position(row, axis))).collect();
        let arrays: [&[u32]; ARRAYS] = [
            tokens,
            positions,
            sequences,
            selected,
            &table_starts,
            &tables,
            &run_starts,
            state_from,
            state_to,
            hidden,
            &sights,
            &denoised,
            &second_texts,
            &rope_positions,
            &adapters,
        ];
        let mut written = Vec::from([Range { start: 0, end: COUNTS }]);
        for ((array, start), most) in arrays.into_iter().zip(self.starts()).zip(self.lengths()) {
            assert!(array.len() <= most, "a step has {} entries, but its layout at most {most}", array.len());
            if !array.is_empty() {
                words[start..start + array.len()].copy_from_slice(array);
                written.push(start..start + array.len());
            }
        }
        written
    }
}

/// Where the blocks of each sequence start, and all blocks.
fn block_tables(batch: &Batch<'_>) -> (Vec<u32>, Vec<u32>) {
    let starts = |tables: &[&[u32]], first: usize| {
        let next = |next: &mut usize, table: &&[u32]| Some(std::mem::replace(next, *next + table.len()) as u32);
        tables.iter().scan(first, next).collect::<Vec<u32>>()
    };
    let mut tables = batch.block_tables.concat();
    let all = starts(batch.block_tables, 0);
    let windowed = if batch.window_tables.is_empty() { all.clone() } else { starts(batch.window_tables, tables.len()) };
    tables.extend(batch.window_tables.iter().copied().flatten());
    (all.into_iter().zip(windowed).flat_map(|(all, windowed)| [all, windowed]).collect(), tables)
}

/// What the rows of each sequence see of each other, and the position of the first of them.
fn sight_words(batch: &Batch<'_>) -> Vec<u32> {
    let mut words = vec![0; batch.block_tables.len() * SIGHT_WORDS];
    for row in batch.run_starts() {
        let kind = match batch.sight(row) {
            Sight::Before => 0,
            Sight::EachOther => 1,
            Sight::Canvas => 2,
        };
        let first = batch.sequences[row] as usize * SIGHT_WORDS;
        words[first..first + SIGHT_WORDS].copy_from_slice(&[kind, batch.positions[row]]);
    }
    words
}

/// The position of the first row of the second text of each sequence, or [`NO_SECOND_TEXT`].
fn second_text_starts(batch: &Batch<'_>) -> Vec<u32> {
    match batch.second_texts {
        [] => vec![NO_SECOND_TEXT; batch.block_tables.len()],
        starts => starts.to_vec(),
    }
}

/// The slot and the factor of the adapter of each sequence.
fn adapter_words(batch: &Batch<'_>) -> Vec<u32> {
    if batch.adapters.is_empty() {
        return [NO_ADAPTER, 0].repeat(batch.block_tables.len());
    }
    let of_sequence =
        |(used, slot): (&Option<&AdapterUse>, &u32)| used.map_or([NO_ADAPTER, 0], |used| [*slot, used.scale.to_bits()]);
    batch.adapters.iter().zip(batch.adapter_slots).flat_map(of_sequence).collect()
}

fn denoise_words(rows: &[DenoiseParams]) -> Vec<u32> {
    let of_row = |params: &DenoiseParams| {
        let factor = inverse(params.temperature);
        words(Some(&params.sampling)).into_iter().chain([factor]).map(f32::to_bits)
    };
    rows.iter().flat_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lora::adapter::Adapter;
    use crate::recurrent::NO_SLOT;
    use crate::sample_token::RowSamplingParams;

    #[test]
    fn the_header_points_to_what_a_step_writes() {
        let layout = StepLayout::new(4, [2, 1], 3, 8);
        let mut words = vec![0; layout.bytes() as usize / 4];
        layout.write_header(0x1_0000_0000, &mut words);
        let used = AdapterUse { adapter: Arc::new(Adapter::new(Vec::new())), scale: 0.5 };
        let batch = Batch {
            tokens: &[10, 11, 12],
            positions: &[0, 1, 5],
            rope_positions: &[[0; 3], [1, 2, 3], [4; 3]],
            sequences: &[0, 0, 1],
            block_tables: &[&[7], &[3, 2]],
            window_tables: &[&[5], &[9, 4]],
            selected: &[1, 2],
            hidden: &[2],
            state_from: &[NO_SLOT, 4],
            state_to: &[NO_SLOT, 3, 4],
            sights: &[Sight::Before, Sight::Canvas],
            second_texts: &[1, NO_SECOND_TEXT],
            denoised: &[DenoiseParams { temperature: 0.5, sampling: RowSamplingParams::GREEDY }],
            adapters: &[None, Some(&used)],
            adapter_slots: &[0, 6],
        };
        let written = layout.write(&batch, &mut words);
        assert_eq!(words[..4], [3, 2, 2, 1]);
        let array = |index: usize| {
            let [low, high] = [0, 1].map(|word| words[COUNTS + 2 * index + word]);
            let address = u64::from(low) | u64::from(high) << 32;
            let start = (address - 0x1_0000_0000) as usize / 4;
            &words[start..]
        };
        assert_eq!(array(0)[..3], [10, 11, 12]);
        assert_eq!(array(2)[..3], [0, 0, 1]);
        assert_eq!(array(3)[..2], [1, 2]);
        assert_eq!(array(4)[..4], [0, 3, 1, 4]);
        assert_eq!(array(5)[..6], [7, 3, 2, 5, 9, 4]);
        assert_eq!(array(6)[..2], [0, 2], "the first row of each run of rows of a sequence");
        assert_eq!(array(7)[..2], [NO_SLOT, 4]);
        assert_eq!(array(8)[..3], [NO_SLOT, 3, 4]);
        assert_eq!(array(9)[..1], [2]);
        assert_eq!(array(10)[..4], [0, 0, 2, 5], "the kind of each, and where it starts");
        assert_eq!(array(11)[DENOISE_WORDS - 1], 2.0f32.to_bits());
        assert_eq!(array(12)[..2], [1, NO_SECOND_TEXT]);
        assert_eq!(array(13)[..9], [0, 0, 0, 1, 2, 3, 4, 4, 4]);
        assert_eq!(array(14)[..4], [NO_ADAPTER, 0, 6, 0.5f32.to_bits()]);
        let counts = [4, 3 * 3, 2, 4, 6, 2, 2, 3, 1, 2 * SIGHT_WORDS, DENOISE_WORDS, 2, 3 * 3, 2 * ADAPTER_WORDS];
        assert_eq!(written.iter().map(Range::len).sum::<usize>(), counts.into_iter().sum::<usize>());
    }
}
