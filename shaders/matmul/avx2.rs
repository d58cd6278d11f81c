//! The float32 kernel for AVX2.
//!
//! Up to [`TILE_OUTPUTS`] weight rows are decoded, a span of columns at a time, into a buffer that fits the L1 cache.
//! Then every row of the panel is multiplied with the buffer in register tiles. So weights are decoded once for a panel
//! of rows. The running sums of a result are the lanes of one register. They stay in registers within a span, and in
//! `sums` between spans.
//!
//! With few rows of input the weights are multiplied as they are decoded, without a buffer, so that memory is read all
//! the time.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_maskload_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};
use std::ops::Range;

use super::{TILE_OUTPUTS, Task};
use crate::lanes::{LANES, horizontal_sum};
use crate::quant::BlockFormat;
use crate::quant::avx2::Sink;

/// Columns decoded at a time; a multiple of every block length.
const SPAN: usize = 512;
/// Rows that are multiplied with a decoded span. Their inputs stay in the L2 cache between groups of outputs.
const PANEL_ROWS: usize = 64;

/// Decoded weights: a span of columns for each output of the group.
#[repr(align(64))]
struct Decoded([[f32; SPAN]; TILE_OUTPUTS]);

/// The running sums of a panel: [row][output of the group].
type Sums = [[__m256; TILE_OUTPUTS]; PANEL_ROWS];

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    const { assert!(SPAN.is_multiple_of(F::BLOCK_LEN) && SPAN.is_multiple_of(LANES)) };
    const { assert!(F::BLOCK_LEN == 1 || F::BLOCK_LEN.is_multiple_of(LANES)) };
    if is_few::<F>(task) {
        return run_few::<F>(task);
    }
    let mut decoded = Decoded([[0.0; SPAN]; TILE_OUTPUTS]);
    let mut sums: Sums = [[_mm256_setzero_ps(); TILE_OUTPUTS]; PANEL_ROWS];
    for first_row in (0..task.rows).step_by(PANEL_ROWS) {
        let rows = first_row..task.rows.min(first_row + PANEL_ROWS);
        for first in task.outputs.clone().step_by(TILE_OUTPUTS) {
            let outputs = first..task.outputs.end.min(first + TILE_OUTPUTS);
            sums[..rows.len()].fill([_mm256_setzero_ps(); TILE_OUTPUTS]);
            for start in (0..task.weight.columns).step_by(SPAN) {
                let columns = start..task.weight.columns.min(start + SPAN);
                decode::<F>(task, outputs.clone(), columns.clone(), &mut decoded);
                multiply(task, rows.clone(), outputs.len(), columns, &decoded, &mut sums);
            }
            finish(task, rows.clone(), outputs, &sums);
        }
    }
}

/// Whether the task has few rows, for which [`run_few`] is the faster way.
pub(super) fn is_few<F: BlockFormat>(task: &Task<'_>) -> bool {
    task.rows <= few_rows::<F>() && task.weight.columns.is_multiple_of(run_len::<F>())
}

/// Rows of input up to which no buffer is used. Values that are stored as they are cost little to decode twice.
const fn few_rows<F: BlockFormat>() -> usize {
    if F::BLOCK_LEN == 1 { 2 * RUN_ROWS } else { 1 }
}

/// Columns that are decoded together without a buffer.
const fn run_len<F: BlockFormat>() -> usize {
    if F::BLOCK_LEN == 1 { 32 } else { F::BLOCK_LEN }
}

/// Most rows of input whose running sums fit into the registers, for [`RUN_OUTPUTS`] weight rows.
const RUN_ROWS: usize = 3;
/// Weight rows that are decoded in turns, because each is one dependent chain of additions, and work on the other rows hides
/// its latency.
const RUN_OUTPUTS: usize = 4;

/// Computes the task for few rows. Decoded weights are added to the running sums without being stored.
///
/// The running sums are those of a panel: the same columns in the same order in the same lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_few<F: BlockFormat>(task: &Task<'_>) {
    if const { F::BLOCK_LEN == 1 } && task.rows == 1 {
        return run_one_row::<F>(task);
    }
    for first in task.outputs.clone().step_by(RUN_OUTPUTS) {
        let outputs = first..task.outputs.end.min(first + RUN_OUTPUTS);
        for row in (0..task.rows).step_by(RUN_ROWS) {
            // With `const` the other functions are not compiled for formats that do not need them.
            if const { few_rows::<F>() == 1 } {
                results_of_rows::<F, 1>(task, row, outputs.clone());
                continue;
            }
            match task.rows - row {
                1 => results_of_rows::<F, 1>(task, row, outputs.clone()),
                2 => results_of_rows::<F, 2>(task, row, outputs.clone()),
                _ => results_of_rows::<F, 3>(task, row, outputs.clone()),
            }
        }
    }
}

/// Weight rows that are read in turns for one row of input, if values are stored as they are. The hardware prefetcher follows each
/// of them. With fewer, memory is idle for a part of the time.
const STREAMS: usize = 8;

/// Computes the task for one row of input and weights that store plain values.
#[target_feature(enable = "avx2,fma,f16c")]
fn run_one_row<F: BlockFormat>(task: &Task<'_>) {
    let input = task.input(0, 0..task.weight.columns);
    for first in task.outputs.clone().step_by(STREAMS) {
        let outputs = first..task.outputs.end.min(first + STREAMS);
        // The last row is read again for those that are missing.
        let rows: [&[u8]; STREAMS] = std::array::from_fn(|row| task.weight.row((first + row).min(outputs.end - 1)));
        let mut sums = [[_mm256_setzero_ps()]; STREAMS];
        let bytes = run_len::<F>() * F::BLOCK_BYTES;
        for (run, input) in input.chunks_exact(run_len::<F>()).enumerate() {
            for (row, sums) in rows.iter().zip(&mut sums) {
                let mut sink = Accumulate { inputs: [input], sums };
                // SAFETY: this function enables the CPU features.
                unsafe { F::decode_eights_avx2(&row[run * bytes..][..bytes], &mut sink) };
            }
        }
        let results = sums.map(|[sum]| total_of_register(sum));
        task.finish(0, first, &results[..outputs.len()]);
    }
}

/// Computes the results of `ROWS` rows of input.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn results_of_rows<F: BlockFormat, const ROWS: usize>(task: &Task<'_>, row: usize, outputs: Range<usize>) {
    let inputs = std::array::from_fn(|index| task.input(row + index, 0..task.weight.columns));
    if outputs.len() == RUN_OUTPUTS {
        let sums = four_sums::<F, ROWS>(task, outputs.start, inputs);
        for index in 0..ROWS {
            task.finish(row + index, outputs.start, &sums.map(|sums| total_of_register(sums[index])));
        }
        return;
    }
    for output in outputs {
        for (index, sum) in one_sum::<F, ROWS>(task, output, inputs).into_iter().enumerate() {
            task.finish(row + index, output, &[total_of_register(sum)]);
        }
    }
}

/// The running sums of weight rows `first..first + 4` for some rows of input.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_sums<F: BlockFormat, const ROWS: usize>(
    task: &Task<'_>,
    first: usize,
    inputs: [&[f32]; ROWS],
) -> [[__m256; ROWS]; RUN_OUTPUTS] {
    let rows: [&[u8]; RUN_OUTPUTS] = std::array::from_fn(|row| task.weight.row(first + row));
    let [mut a, mut b, mut c, mut d] = [[_mm256_setzero_ps(); ROWS]; RUN_OUTPUTS];
    let (len, bytes) = (run_len::<F>(), run_len::<F>() / F::BLOCK_LEN * F::BLOCK_BYTES);
    // What lies between is being read already.
    let ahead = if task.tuning.prefetch_ahead == 0 { 0 } else { RUN_OUTPUTS * rows[0].len() };
    for run in 0..task.weight.columns / len {
        let weights = |row: usize| &rows[row][run * bytes..][..bytes];
        for row in 0..RUN_OUTPUTS {
            prefetch_beyond(weights(row), ahead);
        }
        let inputs = inputs.map(|input| &input[run * len..][..len]);
        let sinks = [
            &mut Accumulate { inputs, sums: &mut a },
            &mut Accumulate { inputs, sums: &mut b },
            &mut Accumulate { inputs, sums: &mut c },
            &mut Accumulate { inputs, sums: &mut d },
        ];
        // SAFETY: this function enables the CPU features.
        unsafe { F::decode_four_rows_avx2([weights(0), weights(1), weights(2), weights(3)], sinks) };
    }
    [a, b, c, d]
}

/// The running sums of one weight row for some rows of input.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_sum<F: BlockFormat, const ROWS: usize>(
    task: &Task<'_>,
    output: usize,
    inputs: [&[f32]; ROWS],
) -> [__m256; ROWS] {
    let mut sums = [_mm256_setzero_ps(); ROWS];
    let (len, bytes) = (run_len::<F>(), run_len::<F>() / F::BLOCK_LEN * F::BLOCK_BYTES);
    for (run, weights) in task.weight.row(output).chunks_exact(bytes).enumerate() {
        let inputs = inputs.map(|input| &input[run * len..][..len]);
        // SAFETY: this function enables the CPU features.
        unsafe { F::decode_eights_avx2(weights, &mut Accumulate { inputs, sums: &mut sums }) };
    }
    sums
}

/// Prefetches the weights `ahead` bytes after `bytes`; nothing with 0. A prefetch past the end has no effect.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn prefetch_beyond(bytes: &[u8], ahead: usize) {
    const CACHE_LINE: usize = 64;
    if ahead == 0 {
        return;
    }
    for line in (0..bytes.len()).step_by(CACHE_LINE) {
        let address = bytes.as_ptr().wrapping_add(ahead.wrapping_add(line));
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
}

/// A sink that multiplies the values of a run with rows of input and adds the products to the running sums of the results.
struct Accumulate<'a, const ROWS: usize> {
    inputs: [&'a [f32]; ROWS],
    sums: &'a mut [__m256; ROWS],
}

impl<const ROWS: usize> Sink for Accumulate<'_, ROWS> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m256) {
        for row in 0..ROWS {
            let input = &self.inputs[row][eight * LANES..][..LANES];
            // SAFETY: the slice has LANES values; the caller guarantees the CPU features.
            unsafe { self.sums[row] = _mm256_fmadd_ps(values, _mm256_loadu_ps(input.as_ptr()), self.sums[row]) };
        }
    }
}

/// Decodes the columns of a group of outputs, and pads the last register with zeros.
#[target_feature(enable = "avx2,fma,f16c")]
fn decode<F: BlockFormat>(task: &Task<'_>, outputs: Range<usize>, columns: Range<usize>, decoded: &mut Decoded) {
    let bytes = columns.start / F::BLOCK_LEN * F::BLOCK_BYTES..columns.end / F::BLOCK_LEN * F::BLOCK_BYTES;
    for (output, decoded) in outputs.zip(&mut decoded.0) {
        let (decoded, rest) = decoded.split_at_mut(columns.len());
        let bytes = &task.weight.row(output)[bytes.clone()];
        prefetch_beyond(bytes, task.tuning.prefetch_ahead);
        // SAFETY: this function enables the CPU features.
        unsafe { F::decode_blocks_avx2(bytes, decoded) };
        if !columns.len().is_multiple_of(LANES) {
            rest[..LANES - columns.len() % LANES].fill(0.0);
        }
    }
}

/// Multiplies every row of the panel with the decoded weights, in tiles that fit into the 16 registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply(
    task: &Task<'_>,
    rows: Range<usize>,
    outputs: usize,
    columns: Range<usize>,
    decoded: &Decoded,
    sums: &mut Sums,
) {
    let input = |row: usize| task.input(row, columns.clone());
    let mut row = rows.start;
    while row < rows.end {
        let sums = &mut sums[row - rows.start..];
        let left = rows.end - row;
        let tile_rows = if outputs < TILE_OUTPUTS {
            for output in 0..outputs {
                tile::<1, 1>(decoded, output, [input(row)], sums);
            }
            1
        } else if left >= 3 {
            let inputs = [input(row), input(row + 1), input(row + 2)];
            tile::<4, 3>(decoded, 0, inputs, sums);
            tile::<4, 3>(decoded, 4, inputs, sums);
            3
        } else if left == 2 {
            let inputs = [input(row), input(row + 1)];
            tile::<4, 2>(decoded, 0, inputs, sums);
            tile::<4, 2>(decoded, 4, inputs, sums);
            2
        } else {
            tile::<8, 1>(decoded, 0, [input(row)], sums);
            1
        };
        row += tile_rows;
    }
}

/// Multiplies decoded weight rows `first..first + OUTPUTS` with `ROWS` rows of input and adds the products to the
/// running sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const OUTPUTS: usize, const ROWS: usize>(
    decoded: &Decoded,
    first: usize,
    inputs: [&[f32]; ROWS],
    sums: &mut [[__m256; TILE_OUTPUTS]],
) {
    let columns = inputs[0].len();
    assert!(columns <= SPAN && first + OUTPUTS <= TILE_OUTPUTS && sums.len() >= ROWS);
    assert!(inputs.iter().all(|input| input.len() == columns));
    let weights: [*const f32; OUTPUTS] = std::array::from_fn(|output| decoded.0[first + output].as_ptr());
    let inputs = inputs.map(<[f32]>::as_ptr);
    let mut tile = [[_mm256_setzero_ps(); OUTPUTS]; ROWS];
    for row in 0..ROWS {
        tile[row].copy_from_slice(&sums[row][first..first + OUTPUTS]);
    }
    let whole = columns - columns % LANES;
    for column in (0..whole).step_by(LANES) {
        // SAFETY: `column + LANES <= columns`, which is the length of every input and at most SPAN, the length of the
        // weights.
        let x: [__m256; ROWS] = std::array::from_fn(|row| unsafe { _mm256_loadu_ps(inputs[row].add(column)) });
        for output in 0..OUTPUTS {
            // SAFETY: as above.
            let w = unsafe { _mm256_loadu_ps(weights[output].add(column)) };
            for row in 0..ROWS {
                tile[row][output] = _mm256_fmadd_ps(w, x[row], tile[row][output]);
            }
        }
    }
    if whole < columns {
        let mask = first_lanes(columns - whole);
        for row in 0..ROWS {
            // SAFETY: the mask disables the lanes past `columns`.
            let x = unsafe { _mm256_maskload_ps(inputs[row].add(whole), mask) };
            for output in 0..OUTPUTS {
                // SAFETY: SPAN is a multiple of LANES, so the weights have a whole register here, padded with zeros.
                let w = unsafe { _mm256_loadu_ps(weights[output].add(whole)) };
                tile[row][output] = _mm256_fmadd_ps(w, x, tile[row][output]);
            }
        }
    }
    for row in 0..ROWS {
        sums[row][first..first + OUTPUTS].copy_from_slice(&tile[row]);
    }
}

/// A mask of the first `count` lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn first_lanes(count: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 2 * LANES] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let lanes = &ONES_THEN_ZEROS[LANES - count..][..LANES];
    // SAFETY: the slice has LANES values of 4 bytes, the size of the register.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

/// Adds the running sums and writes the results.
#[target_feature(enable = "avx2,fma,f16c")]
fn finish(task: &Task<'_>, rows: Range<usize>, outputs: Range<usize>, sums: &Sums) {
    for (row, sums) in rows.zip(sums) {
        let mut totals = [0.0; TILE_OUTPUTS];
        for (out, sums) in totals.iter_mut().zip(&sums[..outputs.len()]) {
            *out = total_of_register(*sums);
        }
        task.finish(row, outputs.start, &totals[..outputs.len()]);
    }
}

/// Adds the lanes in the order of [`horizontal_sum`].
#[inline]
#[target_feature(enable = "avx2")]
fn total_of_register(sums: __m256) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: `lanes` has the size of the register.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums) };
    horizontal_sum(lanes)
}
