//! What the AVX2 decoders of the formats share: from packed bytes to registers of float32.
//!
//! Everything here is inlined into functions compiled for AVX2, FMA and F16C, which is also what every function asks
//! of its caller.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_unpackhi_epi64, _mm256_and_si256,
    _mm256_broadcastss_ps, _mm256_castsi256_si128, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_extracti128_si256, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps,
};

/// Values in a register.
pub(super) const LANES: usize = 8;

/// The float16 at `offset` of a block, in every lane.
///
/// # Safety
/// The machine must have AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn scale_at(block: &[u8], offset: usize) -> __m256 {
    let bits = u16::from_le_bytes([block[offset], block[offset + 1]]);
    // SAFETY: the caller has the features.
    unsafe { _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
}

/// 8 bytes, at the low end of a register.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn load_8(bytes: &[u8]) -> __m128i {
    let bytes: &[u8; 8] = bytes[..8].try_into().expect("the slice has 8 bytes");
    // SAFETY: 8 bytes are read, and they are there; the caller has the features.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// 32 bytes.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn load_32(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 32] = bytes[..32].try_into().expect("the slice has 32 bytes");
    // SAFETY: 32 bytes are read, and they are there; the caller has the features.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Reads 8 values.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn load(values: &[f32]) -> __m256 {
    let values: &[f32; LANES] = values[..LANES].try_into().expect("the slice has 8 values");
    // SAFETY: 8 values are read, and they are there; the caller has the features.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Writes 8 values.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn store(out: &mut [f32], values: __m256) {
    let out: &mut [f32; LANES] = (&mut out[..LANES]).try_into().expect("the slice has 8 values");
    // SAFETY: 8 values are written, and there is room; the caller has the features.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), values) }
}

/// The low and the high nibbles of 8 bytes, as 32-bit integers.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn nibbles_of_8(bytes: &[u8]) -> (__m256i, __m256i) {
    // SAFETY: the caller has the features.
    unsafe {
        let wide = _mm256_cvtepu8_epi32(load_8(bytes));
        (_mm256_and_si256(wide, _mm256_set1_epi32(15)), _mm256_srli_epi32::<4>(wide))
    }
}

/// The bits `SHIFT..` of each of 32 bytes, as far as `mask` has them.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn bits<const SHIFT: i32>(bytes: __m256i, mask: i8) -> __m256i {
    // Bits that a 16-bit shift moves in from the neighbouring byte are above the mask.
    // SAFETY: the caller has the features.
    unsafe { _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(bytes), _mm256_set1_epi8(mask)) }
}

/// 32 unsigned bytes as float32, 8 at a time, in order.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn unsigned_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller has the features.
    unsafe { eights(bytes).map(|eight| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight))) }
}

/// 32 signed bytes as float32, 8 at a time, in order.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn signed_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller has the features.
    unsafe { eights(bytes).map(|eight| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))) }
}

/// The four parts of 8 bytes, each at the low end of a register.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn eights(bytes: __m256i) -> [__m128i; 4] {
    // SAFETY: the caller has the features.
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)]
    }
}
