//! The kernel of BF16 weights and rows rounded to BF16, for AVX512-BF16.
//!
//! A result has sixteen running sums. Sum `l` adds the products of columns `2 l` and `2 l + 1`, then those 32 columns further on,
//! and so on. The sums are then added in one fixed order. So a result does not depend on the other rows.
//!
//! Weights are multiplied as they are stored. A span of columns of [`GROUP_OUTPUTS`] weight rows stays in the L1 cache while it is
//! multiplied with all rows of a panel, in register tiles.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_maskz_loadu_epi16,
    _mm512_setzero_ps, _mm512_shuffle_f32x4,
};
use std::mem::transmute;
use std::ops::Range;

use super::Task;
use super::avx512::{GROUP_OUTPUTS, totals};
use super::bfloat16::{LANES, RoundedRows, can_multiply};
use crate::cpu::Kernel;
use crate::prefetch::prefetch;

/// Columns that are multiplied at a time if there are many rows.
const SPAN: usize = 16 * LANES;
/// Weight rows in a tile.
const TILE_OUTPUTS: usize = 4;
/// Rows of input in a tile. With [`TILE_OUTPUTS`] they fill 24 of the 32 registers.
const TILE_ROWS: usize = 6;
/// The most rows that are multiplied with a span.
const PANEL_ROWS: usize = 16 * TILE_ROWS;

/// The running sums of a panel: [row][output of the group].
type Sums = [[__m512; GROUP_OUTPUTS]; PANEL_ROWS];

/// Computes the task with rounded rows.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, DQ) and AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
pub(super) unsafe fn run(task: &Task<'_>, input: RoundedRows<'_>) {
    assert!(can_multiply(Kernel::Avx512Vnni, task.weight.format));
    let mut sums: Sums = [[_mm512_setzero_ps(); GROUP_OUTPUTS]; PANEL_ROWS];
    for first_row in (0..task.rows).step_by(PANEL_ROWS) {
        let rows = first_row..task.rows.min(first_row + PANEL_ROWS);
        // The weights of a few rows are read once, so that whole rows of them are read in the order of memory.
        let span = if rows.len() <= TILE_ROWS { task.weight.columns } else { SPAN };
        for first in task.outputs.clone().step_by(GROUP_OUTPUTS) {
            let outputs = first..task.outputs.end.min(first + GROUP_OUTPUTS);
            sums[..rows.len()].fill([_mm512_setzero_ps(); GROUP_OUTPUTS]);
            for start in (0..task.weight.columns).step_by(span) {
                let columns = start..task.weight.columns.min(start + span);
                multiply(&Part { task, input, outputs: outputs.clone(), columns }, rows.clone(), &mut sums);
            }
            for (row, sums) in rows.clone().zip(&sums) {
                task.finish(row, outputs.start, &totals(&in_halves(sums))[..outputs.len()]);
            }
        }
    }
}

/// Some columns of a group of outputs.
struct Part<'a> {
    task: &'a Task<'a>,
    input: RoundedRows<'a>,
    outputs: Range<usize>,
    columns: Range<usize>,
}

impl Part<'_> {
    /// The columns of [`TILE_OUTPUTS`] outputs, from number `first` of the group on. The last output is repeated for those that are
    /// missing.
    fn weights(&self, first: usize) -> [&[u8]; TILE_OUTPUTS] {
        std::array::from_fn(|index| {
            let output = (self.outputs.start + first + index).min(self.outputs.end - 1);
            &self.task.weight.row(output)[2 * self.columns.start..2 * self.columns.end]
        })
    }

    /// The columns of `ROWS` rows of input, with their padding.
    fn inputs<const ROWS: usize>(&self, row: usize) -> [&[u16]; ROWS] {
        let columns = self.columns.start..self.columns.end.next_multiple_of(LANES);
        std::array::from_fn(|index| &self.input.row(row + index)[columns.clone()])
    }

    /// How far ahead of the weights in use the next ones are prefetched, in bytes: the same columns of the next group. The weights
    /// of a few rows are left to the hardware prefetcher, which follows them faster.
    fn prefetch_ahead(&self, rows: usize) -> usize {
        let is_wanted = rows > TILE_ROWS && self.task.tuning.prefetch_ahead > 0;
        if is_wanted { GROUP_OUTPUTS * self.task.weight.row_bytes() } else { 0 }
    }
}

/// Multiplies a part with every row of the panel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn multiply(part: &Part<'_>, rows: Range<usize>, sums: &mut Sums) {
    for row in rows.clone().step_by(TILE_ROWS) {
        // The first tile reads the weights from memory. The others find them in the cache.
        let ahead = if row == rows.start { part.prefetch_ahead(rows.len()) } else { 0 };
        let sums = &mut sums[row - rows.start..];
        for first in (0..part.outputs.len()).step_by(TILE_OUTPUTS) {
            match rows.end - row {
                1 => tile::<1>(part, row, first, ahead, sums),
                2 => tile::<2>(part, row, first, ahead, sums),
                3 => tile::<3>(part, row, first, ahead, sums),
                4 => tile::<4>(part, row, first, ahead, sums),
                5 => tile::<5>(part, row, first, ahead, sums),
                _ => tile::<TILE_ROWS>(part, row, first, ahead, sums),
            }
        }
    }
}

/// Multiplies [`TILE_OUTPUTS`] outputs of a part, from number `first` on, with `ROWS` rows of input and adds the products to the
/// running sums. Sums of outputs that are missing are not used.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn tile<const ROWS: usize>(
    part: &Part<'_>,
    row: usize,
    first: usize,
    ahead: usize,
    sums: &mut [[__m512; GROUP_OUTPUTS]],
) {
    let (weights, inputs) = (part.weights(first).map(<[u8]>::as_ptr), part.inputs::<ROWS>(row).map(<[u16]>::as_ptr));
    let mut tile = [[_mm512_setzero_ps(); TILE_OUTPUTS]; ROWS];
    for row in 0..ROWS {
        tile[row].copy_from_slice(&sums[row][first..first + TILE_OUTPUTS]);
    }
    let mut add = |column: usize, w: [__m512i; TILE_OUTPUTS]| {
        for row in 0..ROWS {
            // SAFETY: `column` is a multiple of LANES and below the number of columns, and inputs are padded to whole registers.
            let x = unsafe { _mm512_loadu_si512(inputs[row].add(column).cast()) };
            for output in 0..TILE_OUTPUTS {
                tile[row][output] = dot(tile[row][output], w[output], x);
            }
        }
    };
    let columns = part.columns.len();
    let whole = columns - columns % LANES;
    for column in (0..whole).step_by(LANES) {
        if ahead > 0 {
            weights.iter().for_each(|row| prefetch(row.wrapping_add(ahead + 2 * column)));
        }
        // SAFETY: `column + LANES` is at most the number of columns of the weights.
        add(column, weights.map(|row| unsafe { _mm512_loadu_si512(row.add(2 * column).cast()) }));
    }
    if whole < columns {
        let mask = (1_u32 << (columns - whole)) - 1;
        // SAFETY: the mask disables the columns past the end of the weights.
        add(whole, weights.map(|row| unsafe { _mm512_maskz_loadu_epi16(mask, row.add(2 * whole).cast()) }));
    }
    for row in 0..ROWS {
        sums[row][first..first + TILE_OUTPUTS].copy_from_slice(&tile[row]);
    }
}

/// Adds the products of each pair of columns to a lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn dot(sums: __m512, w: __m512i, x: __m512i) -> __m512 {
    // SAFETY: both types are registers of 512 bits, and every bit pattern is valid.
    let pairs = |values: __m512i| unsafe { transmute::<__m512i, __m512bh>(values) };
    _mm512_dpbf16_ps(sums, pairs(w), pairs(x))
}

/// Adds the halves of the sums of each output. A register has the results of two outputs, as [`totals`] expects.
#[target_feature(enable = "avx512f")]
fn in_halves(sums: &[__m512; GROUP_OUTPUTS]) -> [__m512; GROUP_OUTPUTS / 2] {
    std::array::from_fn(|pair| {
        let (a, b) = (sums[2 * pair], sums[2 * pair + 1]);
        _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    })
}
