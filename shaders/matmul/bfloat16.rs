//! Rows rounded to BF16, for kernels that multiply them with BF16 weights.
//!
//! This is how BF16 weights are multiplied if activations have 8 bits and the CPU has dot products of pairs of BF16 values: a
//! BF16 value has 8 significant bits.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AVX-512 has a kernel for these rows"))]

use crate::cpu::{ActivationBits, InstructionSet, Kernel, Team, for_each_chunk};
use crate::quant::Format;

/// Columns of a register. Rows are padded to a multiple of it.
pub(super) const LANES: usize = 32;

/// Whether products with weights of this format are computed with rounded rows.
pub(super) fn multiplies(kernel: Kernel, bits: ActivationBits, format: Format) -> bool {
    bits == ActivationBits::Eight && can_multiply(kernel, format)
}

/// Whether BF16 weights are multiplied with rows rounded to BF16, which gives other bits than products in float32.
#[must_use]
pub fn rounds_to_bfloat16(kernel: Kernel, bits: ActivationBits) -> bool {
    multiplies(kernel, bits, Format::BF16)
}

/// Whether the kernel can multiply weights of this format with rounded rows.
pub(super) fn can_multiply(kernel: Kernel, format: Format) -> bool {
    let avx512 = kernel.is_integer() && kernel.instruction_set() == InstructionSet::Avx512;
    avx512 && format == Format::BF16 && cpu_has_dot_products()
}

/// Whether this CPU has dot products of pairs of BF16 values.
fn cpu_has_dot_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Rows of activations, rounded to the nearest BF16 values and padded with zeros.
#[derive(Clone, Copy)]
pub(crate) struct RoundedRows<'a> {
    values: &'a [u16],
    /// The length of a row, a multiple of [`LANES`].
    stride: usize,
}

/// Scratch memory for the rounded rows, in float32 values.
pub(super) fn scratch_len(rows: usize, columns: usize) -> usize {
    rows * columns.next_multiple_of(LANES) / 2
}

impl<'a> RoundedRows<'a> {
    /// Rounds rows of `columns` values each into `scratch` of [`scratch_len`] values.
    ///
    /// # Panics
    /// When `input` is not whole rows, `scratch` is too short, or the CPU has no such dot products.
    pub(super) fn round(team: &dyn Team, input: &[f32], columns: usize, scratch: &'a mut [f32]) -> Self {
        assert!(input.len().is_multiple_of(columns) && cpu_has_dot_products());
        let (rows, stride) = (input.len() / columns, columns.next_multiple_of(LANES));
        let values = halves_in(&mut scratch[..scratch_len(rows, columns)]);
        const ROWS_PER_TASK: usize = 4;
        for_each_chunk(team, values, ROWS_PER_TASK * stride, &|task, out| {
            let input = &input[task * ROWS_PER_TASK * columns..];
            for (input, out) in input.chunks_exact(columns).zip(out.chunks_exact_mut(stride)) {
                // SAFETY: the assertion above checks the CPU features.
                unsafe { round_row(input, out) };
            }
        });
        RoundedRows { values, stride }
    }

    /// A row, with its padding.
    pub(super) fn row(&self, row: usize) -> &'a [u16] {
        &self.values[row * self.stride..][..self.stride]
    }
}

/// Reinterprets scratch memory as BF16 values.
fn halves_in(scratch: &mut [f32]) -> &mut [u16] {
    // SAFETY: a float32 value has the size of two BF16 values and a stricter alignment, every bit pattern is valid, and the
    // memory is borrowed for the lifetime of the values.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), 2 * scratch.len()) }
}

/// Rounds a row, and fills the rest of `out` with zeros. Values below 2^-126 become zero.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn round_row(input: &[f32], out: &mut [u16]) {
    use std::arch::x86_64::{__m256bh, __m256i, _mm256_storeu_si256, _mm512_cvtneps_pbh, _mm512_maskz_loadu_ps};

    for (index, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let input = &input[input.len().min(16 * index)..];
        let mask = ((1_u32 << input.len().min(16)) - 1) as u16;
        // SAFETY: the mask disables what lies past the end of the input. `out` has the size of the result, and both register
        // types have 256 bits.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, input.as_ptr()));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn round_row(_: &[f32], _: &mut [u16]) {
    unreachable!("only AVX-512 has a kernel for rounded rows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Solo;
    use crate::quant::random;

    #[test]
    fn rows_are_rounded_to_the_nearest_values_and_padded_with_zeros() {
        if !cpu_has_dot_products() {
            return eprintln!("SKIPPED: this CPU has no dot products of BF16 values");
        }
        for columns in [1, 15, 16, 31, 32, 100] {
            let mut input = random::activations(5 * columns, 1);
            // Halfway between two values, infinite, and too large.
            input[0] = f32::from_bits(0x3f80_8000);
            input[columns] = f32::NEG_INFINITY;
            input[2 * columns] = f32::MAX;
            let mut scratch = vec![f32::NAN; scratch_len(5, columns)];
            let rounded = RoundedRows::round(&Solo, &input, columns, &mut scratch);
            for (row, input) in input.chunks_exact(columns).enumerate() {
                let expected: Vec<u16> = input.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
                assert_eq!(rounded.row(row)[..columns], expected);
                assert!(rounded.row(row)[columns..].iter().all(|padding| *padding == 0));
            }
        }
    }
}
