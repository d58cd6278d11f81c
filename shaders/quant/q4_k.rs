//! Q4_K: 256 values in 144 bytes (4.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                              |
//! |---------|------------------------------------------------------------------------------------------------------|
//! | 0..2    | `d`, f16, unit of the scales                                                                         |
//! | 2..4    | `dmin`, f16, unit of the minima                                                                      |
//! | 4..16   | scales and minima, see `scales_and_minima`                                                           |
//! | 16..144 | `q`: 32 bytes for each pair of groups, the first group in the low nibbles, the second in the high    |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_mul_ps, _mm256_set1_ps, _mm256_sub_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::integer::{IntegerBlock, IntegerLayout, MAX_GROUPS, half_at};
use super::{BlockFormat, scale_at};

/// 256 values in 144 bytes.
pub struct Q4K;

impl BlockFormat for Q4K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const GGML_ID: u32 = 12;
    const NAME: &'static str = "Q4_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(4, 0, 32).with_group_scales().with_minimum());

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, minima) = scales_and_minima(block, scale_at(block, 0), scale_at(block, 2));
        for (pair, (out, bytes)) in out[..256].chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
                *low = scales[2 * pair] * f32::from(byte & 15) - minima[2 * pair];
                *high = scales[2 * pair + 1] * f32::from(byte >> 4) - minima[2 * pair + 1];
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.minimum_unit = -half_at(block, 2);
        (out.scales, out.minima) = integer_scales_and_minima(block);
        for (codes, bytes) in out.codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
                *low = byte & 15;
                *high = byte >> 4;
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller has the features.
        let scales = unsafe { scales_and_minima_avx2(block) };
        for pair in 0..4 {
            // SAFETY: the caller has the features.
            unsafe { decode_pair_avx2(block, &scales, pair, sink) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], [a, b, c, d]: [&mut S; 4]) {
        // SAFETY: the caller has the features.
        let scales = unsafe {
            [
                scales_and_minima_avx2(blocks[0]),
                scales_and_minima_avx2(blocks[1]),
                scales_and_minima_avx2(blocks[2]),
                scales_and_minima_avx2(blocks[3]),
            ]
        };
        for pair in 0..4 {
            // SAFETY: the caller has the features.
            unsafe {
                decode_pair_avx2(blocks[0], &scales[0], pair, a);
                decode_pair_avx2(blocks[1], &scales[1], pair, b);
                decode_pair_avx2(blocks[2], &scales[2], pair, c);
                decode_pair_avx2(blocks[3], &scales[3], pair, d);
            }
        }
    }
}

/// Decodes one pair of groups.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn decode_pair_avx2(
    block: &[u8],
    (scales, minima): &([f32; 8], [f32; 8]),
    pair: usize,
    sink: &mut impl avx2::Sink,
) {
    // SAFETY: the caller has the features.
    unsafe {
        let bytes = avx2::load_32(&block[16 + 32 * pair..]);
        let groups = [avx2::bits::<0>(bytes, 15), avx2::bits::<4>(bytes, 15)];
        for (group, q) in groups.into_iter().enumerate() {
            let group = 2 * pair + group;
            let (scale, minimum) = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(minima[group]));
            for (eight, q) in avx2::unsigned_to_f32(q).into_iter().enumerate() {
                sink.take(group * 4 + eight, _mm256_sub_ps(_mm256_mul_ps(scale, q), minimum));
            }
        }
    }
}

/// The scale and the minimum of each group, times their units `d` and `dmin`, from the start of a block.
#[inline(always)]
pub(super) fn scales_and_minima(block: &[u8], d: f32, dmin: f32) -> ([f32; 8], [f32; 8]) {
    let (scale_bytes, minimum_bytes) = packed_scales_and_minima(block);
    (in_units(scale_bytes, d), in_units(minimum_bytes, dmin))
}

/// The scale and the minimum of each group, in units; those of groups that there are not are 0.
#[inline(always)]
pub(super) fn integer_scales_and_minima(block: &[u8]) -> ([i8; MAX_GROUPS], [i8; MAX_GROUPS]) {
    let (scale_bytes, minimum_bytes) = packed_scales_and_minima(block);
    let spread = |bytes: [u8; 8]| std::array::from_fn(|group| bytes.get(group).map_or(0, |&byte| byte as i8));
    (spread(scale_bytes), spread(minimum_bytes))
}

/// The 6-bit scale and minimum of each group, from the start of a block.
///
/// Groups 0..4 have their 6-bit scale in the low bits of byte `4 + g`, and their minimum in those of byte `8 + g`.
/// Groups 4..8 have the low 4 bits in byte `8 + g` (scale in the low nibble, minimum in the high), and the upper two in
/// the two bits left over of bytes `g` (scale) and `4 + g` (minimum).
#[inline(always)]
fn packed_scales_and_minima(block: &[u8]) -> ([u8; 8], [u8; 8]) {
    const LOW_2: u32 = 0x0303_0303;
    const LOW_4: u32 = 0x0f0f_0f0f;
    const LOW_6: u32 = 0x3f3f_3f3f;
    // Four groups at a time, a byte each.
    let four = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("the slice has 4 bytes"));
    let (first, second, third) = (four(4), four(8), four(12));
    let scales = [first & LOW_6, (third & LOW_4) | ((first >> 6) & LOW_2) << 4];
    let minima = [second & LOW_6, ((third >> 4) & LOW_4) | ((second >> 6) & LOW_2) << 4];
    let bytes = |[low, high]: [u32; 2]| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    (bytes(scales), bytes(minima))
}

/// As [`scales_and_minima`], with the units read from the block by F16C.
///
/// # Safety
/// The machine must have F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn scales_and_minima_avx2(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    // SAFETY: the caller has the features.
    let (d, dmin) = unsafe { (avx2::one_scale_at(block, 0), avx2::one_scale_at(block, 2)) };
    scales_and_minima(block, d, dmin)
}

/// Eight bytes, each times `unit`.
#[inline(always)]
fn in_units(bytes: [u8; 8], unit: f32) -> [f32; 8] {
    let mut values = [0.0; 8];
    for (value, byte) in values.iter_mut().zip(bytes) {
        *value = unit * f32::from(byte);
    }
    values
}
