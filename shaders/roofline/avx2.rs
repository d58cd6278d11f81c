//! AVX2 with FMA, and the integer dot products of AVX-VNNI.

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi8, _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
};
use std::hint::black_box;

use super::sizes::{READ_BYTES, ROUNDS};

const REGISTER_BYTES: usize = size_of::<__m256i>();

/// The exclusive or of all words.
#[target_feature(enable = "avx2")]
pub(super) fn read(blocks: &[[u8; READ_BYTES]], prefetch_ahead: usize) -> u64 {
    const REGISTERS: usize = READ_BYTES / REGISTER_BYTES;
    let mut sums = [_mm256_setzero_si256(); 8];
    for block in blocks {
        for (index, register) in block.as_chunks::<REGISTER_BYTES>().0.iter().enumerate().take(REGISTERS) {
            if index.is_multiple_of(2) {
                // A prefetch never faults, and a prefetch of the register itself costs nothing.
                _mm_prefetch::<_MM_HINT_T0>(register.as_ptr().wrapping_add(prefetch_ahead).cast());
            }
            // SAFETY: the block has the bytes of the register.
            let register = unsafe { _mm256_loadu_si256(register.as_ptr().cast()) };
            sums[index % 8] = _mm256_xor_si256(sums[index % 8], register);
        }
    }
    let sum = sums.into_iter().fold(_mm256_setzero_si256(), |sum, lane| _mm256_xor_si256(sum, lane));
    let mut words = [0_u64; 4];
    // SAFETY: the array has the size of the register.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
    words.into_iter().fold(0, |sum, word| sum ^ word)
}

/// Registers in flight, enough to hide the latency of an operation.
const CHAINS: usize = 10;

/// Dot products in three instructions: products of bytes in pairs, pairs of those, and the sum.
#[target_feature(enable = "avx2")]
pub(super) fn dot_products() -> u64 {
    let (one, ones) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
    let values: [__m256i; CHAINS] = black_box(std::array::from_fn(|index| _mm256_set1_epi8(index as i8)));
    let (mut sums, mut codes) = ([_mm256_setzero_si256(); CHAINS], black_box(one));
    for _ in 0..ROUNDS {
        // The codes change in each round; otherwise the compiler would compute the products only once.
        codes = _mm256_add_epi8(codes, one);
        for (sum, values) in sums.iter_mut().zip(values) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, values), ones));
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES) as u64
}

/// Dot products in one instruction.
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn dot_products_vnni() -> u64 {
    let (codes, values) = black_box((_mm256_set1_epi8(3), _mm256_set1_epi8(-5)));
    let mut sums = [_mm256_setzero_si256(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, codes, values);
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES) as u64
}

/// Multiplies and adds in float32; returns the number of operations.
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_adds() -> u64 {
    let (factor, term) = black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(1.0)));
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES / size_of::<f32>()) as u64
}
