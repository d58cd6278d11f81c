//! What the AVX2 decoders of the formats share: from packed bytes to registers of float32.
//!
//! Everything here is inlined into functions compiled for AVX2, FMA and F16C, which is also what every function asks
//! of its caller.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128,
    _mm_srli_epi16, _mm_unpackhi_epi64, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_broadcastss_ps,
    _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_extracti128_si256, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_or_si256, _mm256_set_m128i, _mm256_set1_epi8,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_shuffle_epi8, _mm256_srli_epi16,
    _mm256_srli_epi32, _mm256_storeu_ps,
};

use super::integer::Codebook;

/// Values in a register.
pub(super) const LANES: usize = 8;

/// Where a decoder puts its values: into memory, or straight into sums.
///
/// A trait rather than a closure, since only a function can be forced inline, and a register of values is too costly to
/// pass by call.
pub trait Sink {
    /// Takes the values `8 * eight..` of the block. A decoder calls it with ascending `eight`.
    ///
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    unsafe fn take(&mut self, eight: usize, values: __m256);
}

/// Writes the values of a block to memory.
pub(super) struct Store<'a> {
    /// The block's values.
    pub(super) out: &'a mut [f32],
}

impl Sink for Store<'_> {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: __m256) {
        // SAFETY: the caller has the features.
        unsafe { store(&mut self.out[eight * LANES..], values) };
    }
}

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

/// The float16 at `offset` of a block.
///
/// # Safety
/// The machine must have F16C.
#[inline(always)]
pub(super) unsafe fn one_scale_at(block: &[u8], offset: usize) -> f32 {
    let bits = u16::from_le_bytes([block[offset], block[offset + 1]]);
    // SAFETY: the caller has the features.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
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

/// 32 integers of 5 bits, a byte each: the fifth bits in 4 bytes; the low bits in 16, first all low nibbles, then all high.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn five_bits(fifth: &[u8], low: &[u8]) -> __m256i {
    let fifth = i32::from_le_bytes(fifth[..4].try_into().expect("the slice has 4 bytes"));
    let low: &[u8; 16] = low[..16].try_into().expect("the slice has 16 bytes");
    // SAFETY: 16 bytes are read, and they are there; the caller has the features.
    unsafe {
        let low = _mm_loadu_si128(low.as_ptr().cast());
        let low = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        // Each byte takes the byte of `fifth` that its bit is in, and looks at that bit.
        let byte = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let fifth = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(fifth), byte), bit);
        let fifth = _mm256_and_si256(_mm256_cmpeq_epi8(fifth, bit), _mm256_set1_epi8(16));
        _mm256_or_si256(low, fifth)
    }
}

/// What a table has at 32 codes of 4 bits, a signed byte each: the codes in 16 bytes, first all low nibbles, then all high.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn looked_up(codebook: &Codebook, codes: &[u8]) -> __m256i {
    let codes: &[u8; 16] = codes[..16].try_into().expect("the slice has 16 bytes");
    // SAFETY: 16 bytes are read of each, and they are there; the caller has the features.
    unsafe {
        let codes = _mm_loadu_si128(codes.as_ptr().cast());
        let codes = _mm256_set_m128i(_mm_srli_epi16::<4>(codes), codes);
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(codebook.as_ptr().cast()));
        _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)))
    }
}

/// 32 unsigned bytes as float32, 8 at a time, in order.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn unsigned_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller has the features.
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

/// 32 signed bytes as float32, 8 at a time, in order.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn signed_to_f32(bytes: __m256i) -> [__m256; 4] {
    // SAFETY: the caller has the features.
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
