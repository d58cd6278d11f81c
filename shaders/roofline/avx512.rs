//! AVX-512 with VNNI.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_set1_epi8,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};
use std::hint::black_box;

use super::sizes::{READ_BYTES, ROUNDS};

const REGISTER_BYTES: usize = size_of::<__m512i>();

/// The exclusive or of all words.
#[target_feature(enable = "avx512f")]
pub(super) fn read(blocks: &[[u8; READ_BYTES]], prefetch_ahead: usize) -> u64 {
    const REGISTERS: usize = READ_BYTES / REGISTER_BYTES;
    let mut sums = [_mm512_setzero_si512(); REGISTERS];
    for block in blocks {
        for (sum, register) in sums.iter_mut().zip(block.as_chunks::<REGISTER_BYTES>().0) {
            // A prefetch never faults, and a prefetch of the register itself costs nothing.
            _mm_prefetch::<_MM_HINT_T0>(register.as_ptr().wrapping_add(prefetch_ahead).cast());
            // SAFETY: the block has the bytes of the register.
            *sum = _mm512_xor_si512(*sum, unsafe { _mm512_loadu_si512(register.as_ptr().cast()) });
        }
    }
    let sum = sums.into_iter().fold(_mm512_setzero_si512(), |sum, lane| _mm512_xor_si512(sum, lane));
    let mut words = [0_u64; 8];
    // SAFETY: the array has the size of the register.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), sum) };
    words.into_iter().fold(0, |sum, word| sum ^ word)
}

/// Registers in flight, enough to hide the latency of an operation.
const CHAINS: usize = 16;

/// Dot products in one instruction.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn dot_products() -> u64 {
    let (codes, values) = black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(-5)));
    let mut sums = [_mm512_setzero_si512(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, codes, values);
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES) as u64
}

/// Multiplies and adds in float32; returns the number of operations.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply_adds() -> u64 {
    let (factor, term) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(1.0)));
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES / size_of::<f32>()) as u64
}
