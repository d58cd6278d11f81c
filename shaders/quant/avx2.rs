//! Helpers that the AVX2 decoders share: they convert packed bytes to registers of float32.
//!
//! All of them are inlined into functions compiled for AVX2, FMA and F16C.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128,
    _mm_srli_epi16, _mm_unpackhi_epi64, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_broadcastss_ps,
    _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_extracti128_si256, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_or_si256, _mm256_set_m128i, _mm256_set1_epi8,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_shuffle_epi8, _mm256_srli_epi16,
    _mm256_srli_epi32, _mm256_storeu_ps,
};

use super::integer::Codebook;

/// Float32 values in a register.
pub(super) const LANES: usize = 8;

/// The destination of decoded values: memory, or a running sum.
///
/// This is a trait and not a closure because a closure cannot be forced inline, and passing a register of values to a
/// function that is not inlined is too slow.
pub trait Sink {
    /// Receives the values `8 * eight..8 * eight + 8` of the block. A decoder calls it with ascending `eight`.
    ///
    /// # Safety
    /// The CPU must support AVX2, FMA and F16C.
    unsafe fn take(&mut self, eight: usize, values: __m256);
}

/// Writes the values of a block to memory.
pub(super) struct Store<'a> {
    /// Receives the values of the block.
    pub(super) out: &'a mut [f32],
}

impl Sink for Store<'_> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m256) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { store(&mut self.out[eight * LANES..], values) };
    }
}

/// The float16 at `offset` of a block, in every lane.
///
/// # Safety
/// The CPU must support AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn scale_at(block: &[u8], offset: usize) -> __m256 {
    let bits = u16::from_le_bytes([block[offset], block[offset + 1]]);
    // SAFETY: the caller guarantees the CPU features.
    unsafe { _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
}

/// The float16 at `offset` of a block.
///
/// # Safety
/// The CPU must support F16C.
#[inline(always)]
pub(super) unsafe fn one_scale_at(block: &[u8], offset: usize) -> f32 {
    let bits = u16::from_le_bytes([block[offset], block[offset + 1]]);
    // SAFETY: the caller guarantees the CPU features.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
}

/// Loads 8 bytes into the low half of a register.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn load_8(bytes: &[u8]) -> __m128i {
    let bytes: &[u8; 8] = bytes[..8].try_into().expect("the slice has 8 bytes");
    // SAFETY: the load reads the 8 bytes of `bytes`; the caller guarantees the CPU features.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// Loads 32 bytes.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn load_32(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 32] = bytes[..32].try_into().expect("the slice has 32 bytes");
    // SAFETY: the load reads the 32 bytes of `bytes`; the caller guarantees the CPU features.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Loads 8 values.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn load(values: &[f32]) -> __m256 {
    let values: &[f32; LANES] = values[..LANES].try_into().expect("the slice has 8 values");
    // SAFETY: the load reads the 8 values of `values`; the caller guarantees the CPU features.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Stores 8 values.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn store(out: &mut [f32], values: __m256) {
    let out: &mut [f32; LANES] = (&mut out[..LANES]).try_into().expect("the slice has 8 values");
    // SAFETY: the store writes the 8 values of `out`; the caller guarantees the CPU features.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), values) }
}

/// The low and the high nibbles of 8 bytes, as 32-bit integers.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn nibbles_of_8(bytes: &[u8]) -> (__m256i, __m256i) {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let wide = _mm256_cvtepu8_epi32(load_8(bytes));
        (_mm256_and_si256(wide, _mm256_set1_epi32(15)), _mm256_srli_epi32::<4>(wide))
    }
}

/// Each of 32 bytes shifted right by `SHIFT` bits and masked with `mask`.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn bits<const SHIFT: i32>(bytes: __m256i, mask: i8) -> __m256i {
    // A 16-bit shift moves bits in from the neighbouring byte; `mask` removes them.
    // SAFETY: the caller guarantees the CPU features.
    unsafe { _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(bytes), _mm256_set1_epi8(mask)) }
}

/// 32 integers of 5 bits, one byte each. `fifth` has the fifth bits in 4 bytes. `low` has the lower four bits in 16
/// bytes: the low nibbles of all bytes come first, then the high nibbles.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn five_bits(fifth: &[u8], low: &[u8]) -> __m256i {
    let fifth = i32::from_le_bytes(fifth[..4].try_into().expect("the slice has 4 bytes"));
    let low: &[u8; 16] = low[..16].try_into().expect("the slice has 16 bytes");
    // SAFETY: the load reads the 16 bytes of `low`; the caller guarantees the CPU features.
    unsafe {
        let low = _mm_loadu_si128(low.as_ptr().cast());
        let low = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        // Copy to each lane the byte of `fifth` that has its bit, then test the bit.
        let byte = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let fifth = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(fifth), byte), bit);
        let fifth = _mm256_and_si256(_mm256_cmpeq_epi8(fifth, bit), _mm256_set1_epi8(16));
        _mm256_or_si256(low, fifth)
    }
}

/// Looks up 32 codes of 4 bits in a codebook; the results are signed bytes. `codes` has the codes in 16 bytes: the low
/// nibbles of all bytes come first, then the high nibbles.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn look_up(codebook: &Codebook, codes: &[u8]) -> __m256i {
    let codes: &[u8; 16] = codes[..16].try_into().expect("the slice has 16 bytes");
    // SAFETY: the loads read the 16 bytes of `codes` and of `codebook`; the caller guarantees the CPU features.
    unsafe {
        let codes = _mm_loadu_si128(codes.as_ptr().cast());
        let codes = _mm256_set_m128i(_mm_srli_epi16::<4>(codes), codes);
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(codebook.as_ptr().cast()));
        _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)))
    }
}

/// Converts 32 unsigned bytes to float32, 8 per register, in order.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn unsigned_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let [first, second, third, fourth] = eights(bytes);
        [
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(first)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(second)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(third)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(fourth)),
        ]
    }
}

/// Converts 32 signed bytes to float32, 8 per register, in order.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
pub(super) unsafe fn signed_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let [first, second, third, fourth] = eights(bytes);
        [
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(second)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(third)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(fourth)),
        ]
    }
}

/// Splits 32 bytes into four groups of 8, each in the low half of a register.
///
/// # Safety
/// The CPU must support AVX2.
#[inline(always)]
unsafe fn eights(bytes: __m256i) -> [__m128i; 4] {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)]
    }
}
