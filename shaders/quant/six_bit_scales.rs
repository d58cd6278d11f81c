//! What Q4_K and Q5_K share: 8 groups of 32 values, each with a 6-bit scale and a 6-bit minimum, codes stored in pairs
//! of groups.
//!
//! | bytes | content                                           |
//! |-------|---------------------------------------------------|
//! | 0..2  | `d`, f16, unit of the scales                      |
//! | 2..4  | `dmin`, f16, unit of the minima                   |
//! | 4..16 | scales and minima, see `packed_scales_and_minima` |
//! | 16..  | codes; their packing is up to the format          |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, _mm256_mul_ps, _mm256_set1_ps, _mm256_sub_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::integer::{IntegerBlock, MAX_GROUPS};
use super::pack::put_half;
use super::unpack::{half_at, scale_at};

/// Groups in a block.
const GROUPS: usize = 8;

/// Values in a group.
const GROUP_LEN: usize = 32;

/// Pairs of groups in a block.
#[cfg(target_arch = "x86_64")]
const PAIRS: usize = GROUPS / 2;

/// One float32 for each group of a block.
type PerGroup = [f32; GROUPS];

/// How a format with 6-bit scales packs its codes.
pub(super) trait PairedCodes {
    /// Unpacks the codes of groups `2 * pair` and `2 * pair + 1`: `codes` has 64 entries.
    fn pair_codes(block: &[u8], pair: usize, codes: &mut [u8]);

    /// Stores the codes of groups `2 * pair` and `2 * pair + 1`: the inverse of [`PairedCodes::pair_codes`].
    fn put_pair_codes(codes: &[u8], pair: usize, block: &mut [u8]);

    /// The same codes in two registers, one byte per code.
    ///
    /// # Safety
    /// The CPU must support AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pair_codes_avx2(block: &[u8], pair: usize) -> [__m256i; 2];
}

/// Implements [`BlockFormat::decode`](super::BlockFormat::decode).
#[inline(always)]
pub(super) fn decode<F: PairedCodes>(block: &[u8], out: &mut [f32]) {
    let (scales, minima) = scales_and_minima(block, scale_at(block, 0), scale_at(block, 2));
    for (pair, out) in out[..GROUPS * GROUP_LEN].chunks_exact_mut(2 * GROUP_LEN).enumerate() {
        let mut codes = [0; 2 * GROUP_LEN];
        F::pair_codes(block, pair, &mut codes);
        for (group, (out, codes)) in out.chunks_exact_mut(GROUP_LEN).zip(codes.chunks_exact(GROUP_LEN)).enumerate() {
            let (scale, minimum) = (scales[2 * pair + group], minima[2 * pair + group]);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code) - minimum;
            }
        }
    }
}

/// Implements [`BlockFormat::integers`](super::BlockFormat::integers).
#[inline(always)]
pub(super) fn integers<F: PairedCodes>(block: &[u8], out: &mut IntegerBlock) {
    out.unit = half_at(block, 0);
    out.minimum_unit = -half_at(block, 2);
    (out.scales, out.minima) = integer_scales_and_minima(block);
    for (pair, codes) in out.codes.chunks_exact_mut(2 * GROUP_LEN).enumerate() {
        F::pair_codes(block, pair, codes);
    }
}

/// Implements [`BlockFormat::pack`](super::BlockFormat::pack).
pub(super) fn pack<F: PairedCodes>(integers: &IntegerBlock, block: &mut [u8]) {
    put_half(block, 0, integers.unit);
    put_half(block, 2, -integers.minimum_unit);
    for group in 0..GROUPS / 2 {
        let [scale, later_scale] = [integers.scales[group] as u8, integers.scales[group + 4] as u8];
        let [minimum, later_minimum] = [integers.minima[group] as u8, integers.minima[group + 4] as u8];
        block[4 + group] = scale | later_scale >> 4 << 6;
        block[8 + group] = minimum | later_minimum >> 4 << 6;
        block[12 + group] = later_scale & 15 | (later_minimum & 15) << 4;
    }
    for (pair, codes) in integers.codes.chunks_exact(2 * GROUP_LEN).enumerate() {
        F::put_pair_codes(codes, pair, block);
    }
}

/// Implements [`BlockFormat::decode_eights_avx2`](super::BlockFormat::decode_eights_avx2).
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn decode_eights_avx2<F: PairedCodes>(block: &[u8], sink: &mut impl avx2::Sink) {
    // SAFETY: the caller guarantees the CPU features.
    let scales = unsafe { scales_and_minima_avx2(block) };
    for pair in 0..PAIRS {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { decode_pair_avx2::<F>(block, &scales, pair, sink) };
    }
}

/// Implements [`BlockFormat::decode_four_rows_avx2`](super::BlockFormat::decode_four_rows_avx2).
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn decode_four_rows_avx2<F: PairedCodes, S: avx2::Sink>(
    blocks: [&[u8]; 4],
    [a, b, c, d]: [&mut S; 4],
) {
    // SAFETY: the caller guarantees the CPU features.
    let scales = unsafe {
        [
            scales_and_minima_avx2(blocks[0]),
            scales_and_minima_avx2(blocks[1]),
            scales_and_minima_avx2(blocks[2]),
            scales_and_minima_avx2(blocks[3]),
        ]
    };
    for pair in 0..PAIRS {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            decode_pair_avx2::<F>(blocks[0], &scales[0], pair, a);
            decode_pair_avx2::<F>(blocks[1], &scales[1], pair, b);
            decode_pair_avx2::<F>(blocks[2], &scales[2], pair, c);
            decode_pair_avx2::<F>(blocks[3], &scales[3], pair, d);
        }
    }
}

/// Decodes one pair of groups.
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn decode_pair_avx2<F: PairedCodes>(
    block: &[u8],
    (scales, minima): &(PerGroup, PerGroup),
    pair: usize,
    sink: &mut impl avx2::Sink,
) {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        for (group, q) in F::pair_codes_avx2(block, pair).into_iter().enumerate() {
            let group = 2 * pair + group;
            let (scale, minimum) = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(minima[group]));
            for (eight, q) in avx2::unsigned_to_f32(q).into_iter().enumerate() {
                sink.take(group * 4 + eight, _mm256_sub_ps(_mm256_mul_ps(scale, q), minimum));
            }
        }
    }
}

/// The scale and the minimum of each group, multiplied by their units `d` and `dmin`.
#[inline(always)]
fn scales_and_minima(block: &[u8], d: f32, dmin: f32) -> (PerGroup, PerGroup) {
    let (scales, minima) = packed_scales_and_minima(block);
    (in_units(scales, d), in_units(minima, dmin))
}

/// The scale and the minimum of each group as integers. Entries past the last group are 0.
#[inline(always)]
fn integer_scales_and_minima(block: &[u8]) -> ([i8; MAX_GROUPS], [i8; MAX_GROUPS]) {
    let (scales, minima) = packed_scales_and_minima(block);
    let spread = |bytes: [u8; GROUPS]| std::array::from_fn(|group| bytes.get(group).map_or(0, |&byte| byte as i8));
    (spread(scales), spread(minima))
}

/// The 6-bit scale and minimum of each group, from bytes 4..16 of a block.
///
/// Groups 0..4 have their scale in the low 6 bits of byte `4 + g`, and their minimum in the low 6 bits of byte `8 + g`.
/// Groups 4..8 have their low 4 bits in byte `8 + g` (the scale in the low nibble, the minimum in the high nibble), and
/// their upper 2 bits in the upper 2 bits of bytes `g` (scale) and `4 + g` (minimum).
#[inline(always)]
fn packed_scales_and_minima(block: &[u8]) -> ([u8; GROUPS], [u8; GROUPS]) {
    const LOW_2: u32 = 0x0303_0303;
    const LOW_4: u32 = 0x0f0f_0f0f;
    const LOW_6: u32 = 0x3f3f_3f3f;
    // Each word holds four groups, one byte per group.
    let four = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("the slice has 4 bytes"));
    let (first, second, third) = (four(4), four(8), four(12));
    let scales = [first & LOW_6, (third & LOW_4) | ((first >> 6) & LOW_2) << 4];
    let minima = [second & LOW_6, ((third >> 4) & LOW_4) | ((second >> 6) & LOW_2) << 4];
    let bytes = |[low, high]: [u32; 2]| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    (bytes(scales), bytes(minima))
}

/// Like [`scales_and_minima`], with the units read from the block by F16C instructions.
///
/// # Safety
/// The CPU must support F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn scales_and_minima_avx2(block: &[u8]) -> (PerGroup, PerGroup) {
    // SAFETY: the caller guarantees the CPU features.
    let (d, dmin) = unsafe { (avx2::one_scale_at(block, 0), avx2::one_scale_at(block, 2)) };
    scales_and_minima(block, d, dmin)
}

/// Each byte multiplied by `unit`.
#[inline(always)]
fn in_units(bytes: [u8; GROUPS], unit: f32) -> PerGroup {
    let mut values = [0.0; GROUPS];
    for (value, byte) in values.iter_mut().zip(bytes) {
        *value = unit * f32::from(byte);
    }
    values
}
