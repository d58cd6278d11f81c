//! What the float32 kernel for AVX-512 does with formats that are decoded two weight rows at a time.
//!
//! As in [`avx512`](super::avx512), a register has eight columns of two weight rows, so the results have the bits of the AVX2
//! kernel. For a few rows of input, weights are multiplied as they are decoded.

use std::arch::x86_64::{
    __m512, _mm256_loadu_ps, _mm512_broadcast_f32x8, _mm512_fmadd_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::Task;
use super::avx2::prefetch_beyond;
use crate::lanes::{LANES, horizontal_sum};
use crate::quant::BlockFormat;
use crate::quant::avx512::PairSink;

/// The most rows of input whose sums stay in registers.
pub(super) const FEW_ROWS: usize = 3;
/// Weight rows that are decoded in turns: work on the other pair hides the latency of additions.
const OUTPUTS: usize = 4;

/// Computes the task for at most [`FEW_ROWS`] rows.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, DQ, VBMI), AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn run_few<F: BlockFormat>(task: &Task<'_>) {
    for first in task.outputs.clone().step_by(OUTPUTS) {
        match task.rows {
            0 => {}
            1 => results::<F, 1>(task, first),
            2 => results::<F, 2>(task, first),
            FEW_ROWS => results::<F, FEW_ROWS>(task, first),
            rows => unreachable!("{rows} rows are more than a few"),
        }
    }
}

/// Computes up to [`OUTPUTS`] results of each row of input, from output `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi,avx2,fma,f16c")]
fn results<F: BlockFormat, const ROWS: usize>(task: &Task<'_>, first: usize) {
    let count = OUTPUTS.min(task.outputs.end - first);
    let sums = sums::<F, ROWS>(task, first);
    for row in 0..ROWS {
        let mut lanes = [[0.0; LANES]; OUTPUTS];
        for (pair, lanes) in sums.iter().zip(lanes.as_chunks_mut::<2>().0) {
            // SAFETY: two rows of lanes have the size of the register.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr().cast(), pair[row]) };
        }
        task.finish(row, first, &lanes.map(horizontal_sum)[..count]);
    }
}

/// The running sums of two pairs of weight rows for each row of input. The last weight row is repeated for those that are missing.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi,avx2,fma,f16c")]
fn sums<F: BlockFormat, const ROWS: usize>(task: &Task<'_>, first: usize) -> [[__m512; ROWS]; 2] {
    let rows: [&[u8]; OUTPUTS] = std::array::from_fn(|row| task.weight.row((first + row).min(task.outputs.end - 1)));
    let inputs: [&[f32]; ROWS] = std::array::from_fn(|row| task.input(row, 0..task.weight.columns));
    let ahead = if task.tuning.prefetch_ahead == 0 { 0 } else { OUTPUTS * rows[0].len() };
    let [mut a, mut b] = [[_mm512_setzero_ps(); ROWS]; 2];
    let [first, second, third, fourth] = rows;
    let firsts = first.chunks_exact(F::BLOCK_BYTES).zip(second.chunks_exact(F::BLOCK_BYTES));
    let seconds = third.chunks_exact(F::BLOCK_BYTES).zip(fourth.chunks_exact(F::BLOCK_BYTES));
    for (block, ((first, second), (third, fourth))) in firsts.zip(seconds).enumerate() {
        for row in [first, second, third, fourth] {
            prefetch_beyond(row, ahead);
        }
        let mut of_block = inputs;
        for input in &mut of_block {
            *input = &input[block * F::BLOCK_LEN..][..F::BLOCK_LEN];
        }
        // SAFETY: this function enables the CPU features.
        unsafe {
            F::decode_pair_avx512([first, second], &mut Accumulate { inputs: of_block, sums: &mut a });
            F::decode_pair_avx512([third, fourth], &mut Accumulate { inputs: of_block, sums: &mut b });
        }
    }
    [a, b]
}

/// A sink that multiplies the values of a block with rows of input and adds the products to the running sums of a pair.
struct Accumulate<'a, const ROWS: usize> {
    inputs: [&'a [f32]; ROWS],
    sums: &'a mut [__m512; ROWS],
}

impl<const ROWS: usize> PairSink for Accumulate<'_, ROWS> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m512) {
        for row in 0..ROWS {
            let input = &self.inputs[row][eight * LANES..][..LANES];
            let sum = &mut self.sums[row];
            // SAFETY: the slice has LANES values; the caller guarantees the CPU features.
            unsafe { *sum = _mm512_fmadd_ps(values, _mm512_broadcast_f32x8(_mm256_loadu_ps(input.as_ptr())), *sum) };
        }
    }
}

/// Decodes blocks of two weight rows to registers that have eight columns of both.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, DQ, VBMI), AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn decode<F: BlockFormat>([first, second]: [&[u8]; 2], out: &mut [f32]) {
    let blocks = first.chunks_exact(F::BLOCK_BYTES).zip(second.chunks_exact(F::BLOCK_BYTES));
    for ((first, second), out) in blocks.zip(out.chunks_exact_mut(2 * F::BLOCK_LEN)) {
        // SAFETY: this function enables the CPU features.
        unsafe { F::decode_pair_avx512([first, second], &mut Store { out }) };
    }
}

/// A sink that writes the values of a block to memory.
struct Store<'a> {
    out: &'a mut [f32],
}

impl PairSink for Store<'_> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m512) {
        let out = &mut self.out[2 * eight * LANES..][..2 * LANES];
        // SAFETY: the slice has the size of the register; the caller guarantees the CPU features.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) };
    }
}
