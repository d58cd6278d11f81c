//! The float32 kernel for AVX-512: two outputs per register.
//!
//! The low half of a register has eight columns of one weight row, the high half the same columns of the next row, and the
//! input is copied to both halves. So a result has the running sums of the AVX2 kernel, in the same order: the results of
//! both have the same bits. A few rows of input are left to the AVX2 kernel, because reading memory limits them.
//!
//! [`GROUP_OUTPUTS`] weight rows are decoded, a span of columns at a time, into a buffer that fits the L1 cache. Then every
//! row of the panel is multiplied with the buffer in register tiles.

use std::arch::x86_64::{
    __m256, __m512, _mm256_loadu_ps, _mm256_maskload_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_broadcast_f32x8,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_permutexvar_ps, _mm512_setr_epi32,
    _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};
use std::ops::Range;

use super::{Task, avx2, avx512_pairs};
use crate::lanes::LANES;
use crate::quant::BlockFormat;
use crate::quant::avx2::Sink;

/// Columns decoded at a time; a multiple of every block length.
const SPAN: usize = 256;
/// Weight rows that are decoded together.
pub(super) const GROUP_OUTPUTS: usize = 16;
/// Registers with the running sums of a row of input, each for two outputs of the group.
const PAIRS: usize = GROUP_OUTPUTS / 2;
/// Registers of a row of input in a tile.
const TILE_PAIRS: usize = 4;
/// Rows of input in a tile. With [`TILE_PAIRS`] they fill 24 of the 32 registers; weights and inputs take the others.
const TILE_ROWS: usize = 6;
/// The most rows that are left to the AVX2 kernel, which then decodes weights once.
const FEW_ROWS: usize = 3;
/// The most rows that are multiplied with a decoded span. With fewer, decoding takes a larger part of the time; the inputs of
/// wide rows come from the L3 cache then, which is fast enough for sixteen outputs.
const PANEL_ROWS: usize = 16 * TILE_ROWS;

/// Decoded weights: for each pair of outputs, eight columns of the first, the same columns of the second, and so on.
#[repr(align(64))]
struct Decoded([[f32; 2 * SPAN]; PAIRS]);

/// The running sums of a panel: [row][pair of outputs].
type Sums = [[__m512; PAIRS]; PANEL_ROWS];

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX-512 (F, DQ), AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    const { assert!(SPAN.is_multiple_of(F::BLOCK_LEN) && SPAN.is_multiple_of(LANES)) };
    let in_pairs = const { F::DECODES_PAIRS } && is_x86_feature_detected!("avx512vbmi");
    if in_pairs && task.rows <= avx512_pairs::FEW_ROWS {
        // SAFETY: the check above and the caller guarantee the CPU features.
        return unsafe { avx512_pairs::run_few::<F>(task) };
    }
    if task.rows <= FEW_ROWS && avx2::is_few::<F>(task) {
        return avx2::run_few::<F>(task);
    }
    let mut decoded = Decoded([[0.0; 2 * SPAN]; PAIRS]);
    let mut sums: Sums = [[_mm512_setzero_ps(); PAIRS]; PANEL_ROWS];
    for first_row in (0..task.rows).step_by(PANEL_ROWS) {
        let rows = first_row..task.rows.min(first_row + PANEL_ROWS);
        for first in task.outputs.clone().step_by(GROUP_OUTPUTS) {
            let outputs = first..task.outputs.end.min(first + GROUP_OUTPUTS);
            sums[..rows.len()].fill([_mm512_setzero_ps(); PAIRS]);
            for start in (0..task.weight.columns).step_by(SPAN) {
                let columns = start..task.weight.columns.min(start + SPAN);
                decode::<F>(task, in_pairs, outputs.clone(), columns.clone(), &mut decoded);
                multiply(task, rows.clone(), outputs.len(), columns, &decoded, &mut sums);
            }
            for (row, sums) in rows.clone().zip(&sums) {
                task.finish(row, outputs.start, &totals(sums)[..outputs.len()]);
            }
        }
    }
}

/// Decodes the columns of a group of outputs, `in_pairs` if the format and the CPU can.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
fn decode<F: BlockFormat>(
    task: &Task<'_>,
    in_pairs: bool,
    outputs: Range<usize>,
    columns: Range<usize>,
    decoded: &mut Decoded,
) {
    let bytes = columns.start / F::BLOCK_LEN * F::BLOCK_BYTES..columns.end / F::BLOCK_LEN * F::BLOCK_BYTES;
    // The same columns of the next group: they are read while this span is multiplied.
    let ahead = if task.tuning.prefetch_ahead == 0 { 0 } else { GROUP_OUTPUTS * task.weight.row_bytes() };
    let weights = |output: usize| &task.weight.row(output)[bytes.clone()];
    outputs.clone().for_each(|output| avx2::prefetch_beyond(weights(output), ahead));
    if in_pairs {
        for (first, pair) in outputs.clone().step_by(2).zip(&mut decoded.0) {
            let rows = [first, outputs.end.min(first + 2) - 1].map(weights);
            // SAFETY: the caller has checked the CPU features.
            unsafe { avx512_pairs::decode::<F>(rows, pair) };
        }
        return;
    }
    for (index, output) in outputs.enumerate() {
        let half = &mut decoded.0[index / 2][index % 2 * LANES..];
        // SAFETY: this function enables the CPU features.
        unsafe { decode_row::<F>(weights(output), half) };
    }
}

/// Decodes part of a weight row into one half of the registers that begin with `half`. The last register is padded with zeros.
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[inline(always)]
unsafe fn decode_row<F: BlockFormat>(bytes: &[u8], half: &mut [f32]) {
    if F::BLOCK_LEN > 1 {
        for (block, bytes) in bytes.chunks_exact(F::BLOCK_BYTES).enumerate() {
            let out = &mut half[2 * block * F::BLOCK_LEN..];
            // SAFETY: the caller guarantees the CPU features.
            unsafe { F::decode_eights_avx2(bytes, &mut StoreHalf { out }) };
        }
        return;
    }
    let (eights, last) = bytes.split_at(bytes.len() - bytes.len() % (LANES * F::BLOCK_BYTES));
    // SAFETY: the caller guarantees the CPU features.
    unsafe { F::decode_eights_avx2(eights, &mut StoreHalf { out: half }) };
    if !last.is_empty() {
        let out = &mut half[2 * eights.len() / F::BLOCK_BYTES..][..LANES];
        out.fill(0.0);
        F::decode_blocks(last, &mut out[..last.len() / F::BLOCK_BYTES]);
    }
}

/// Writes values to one half of consecutive registers.
struct StoreHalf<'a> {
    /// Begins with the half of the first register.
    out: &'a mut [f32],
}

impl Sink for StoreHalf<'_> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m256) {
        let out = &mut self.out[2 * eight * LANES..][..LANES];
        // SAFETY: the slice has LANES values; the caller guarantees the CPU features.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), values) };
    }
}

/// Multiplies every row of the panel with the decoded weights.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
fn multiply(
    task: &Task<'_>,
    rows: Range<usize>,
    outputs: usize,
    columns: Range<usize>,
    decoded: &Decoded,
    sums: &mut Sums,
) {
    for row in rows.clone().step_by(TILE_ROWS) {
        let sums = &mut sums[row - rows.start..];
        for first in (0..outputs.div_ceil(2)).step_by(TILE_PAIRS) {
            match rows.end - row {
                1 => tile::<1>(task, row, columns.clone(), (decoded, first), sums),
                2 => tile::<2>(task, row, columns.clone(), (decoded, first), sums),
                3 => tile::<3>(task, row, columns.clone(), (decoded, first), sums),
                4 => tile::<4>(task, row, columns.clone(), (decoded, first), sums),
                5 => tile::<5>(task, row, columns.clone(), (decoded, first), sums),
                _ => tile::<TILE_ROWS>(task, row, columns.clone(), (decoded, first), sums),
            }
        }
    }
}

/// Multiplies pairs `first..first + TILE_PAIRS` of decoded weight rows with `ROWS` rows of input and adds the products to the
/// running sums. Pairs past the last output are computed too, and not used.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
fn tile<const ROWS: usize>(
    task: &Task<'_>,
    row: usize,
    columns: Range<usize>,
    (decoded, first): (&Decoded, usize),
    sums: &mut [[__m512; PAIRS]],
) {
    let inputs: [&[f32]; ROWS] = std::array::from_fn(|index| task.input(row + index, columns.clone()));
    let inputs = inputs.map(<[f32]>::as_ptr);
    assert!(columns.len() <= SPAN && first + TILE_PAIRS <= PAIRS && sums.len() >= ROWS);
    let weights: [*const f32; TILE_PAIRS] = std::array::from_fn(|pair| decoded.0[first + pair].as_ptr());
    let mut tile = [[_mm512_setzero_ps(); TILE_PAIRS]; ROWS];
    for row in 0..ROWS {
        tile[row].copy_from_slice(&sums[row][first..first + TILE_PAIRS]);
    }
    let whole = columns.len() - columns.len() % LANES;
    for column in (0..whole).step_by(LANES) {
        // SAFETY: `column + LANES <= SPAN`, and a pair has twice as many values as a span has columns.
        let w: [__m512; TILE_PAIRS] = weights.map(|pair| unsafe { _mm512_loadu_ps(pair.add(2 * column)) });
        for row in 0..ROWS {
            // SAFETY: `column + LANES` is at most the length of every input.
            let x = unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(inputs[row].add(column))) };
            for pair in 0..TILE_PAIRS {
                tile[row][pair] = _mm512_fmadd_ps(w[pair], x, tile[row][pair]);
            }
        }
    }
    if whole < columns.len() {
        let mask = avx2::first_lanes(columns.len() - whole);
        for row in 0..ROWS {
            // SAFETY: the mask disables the lanes past the end of the input.
            let x = unsafe { _mm512_broadcast_f32x8(_mm256_maskload_ps(inputs[row].add(whole), mask)) };
            for pair in 0..TILE_PAIRS {
                // SAFETY: SPAN is a multiple of LANES, so the weights have a whole register here, padded with zeros.
                let w = unsafe { _mm512_loadu_ps(weights[pair].add(2 * whole)) };
                tile[row][pair] = _mm512_fmadd_ps(w, x, tile[row][pair]);
            }
        }
    }
    for row in 0..ROWS {
        sums[row][first..first + TILE_PAIRS].copy_from_slice(&tile[row]);
    }
}

/// The sums of the lanes of each half, added in the order of [`horizontal_sum`](crate::lanes::horizontal_sum).
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn totals(sums: &[__m512; PAIRS]) -> [f32; GROUP_OUTPUTS] {
    // [[a + e, b + f, c + g, d + h] of four outputs] of four such groups.
    let quarters: [__m512; 4] = std::array::from_fn(|index| {
        let (x, y) = (sums[2 * index], sums[2 * index + 1]);
        _mm512_add_ps(_mm512_shuffle_f32x4::<0b10_00_10_00>(x, y), _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y))
    });
    let [first, second, third, fourth] = transposed(quarters);
    let totals = _mm512_add_ps(_mm512_add_ps(first, third), _mm512_add_ps(second, fourth));
    // The lane with number 4 k + j has the total of output 4 j + k.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let mut out = [0.0; GROUP_OUTPUTS];
    // SAFETY: `out` has the size of the register.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), _mm512_permutexvar_ps(order, totals)) };
    out
}

/// Transposes the 4 by 4 values that the four registers have in each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn transposed([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let low = [_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d)].map(|both| _mm512_castps_pd(both));
    let high = [_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d)].map(|both| _mm512_castps_pd(both));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1])),
        _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1])),
        _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1])),
        _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1])),
    ]
}
