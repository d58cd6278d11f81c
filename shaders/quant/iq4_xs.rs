//! IQ4_XS: 256 values in 136 bytes (4.25 bits a value): 8 groups of 32, each with a signed 6-bit scale. Codes use the
//! codebook of [`iq4_nl`](super::iq4_nl).
//!
//! | bytes  | content                                                                                                          |
//! |--------|------------------------------------------------------------------------------------------------------------------|
//! | 0..2   | `d`, f16, unit of the scales                                                                                     |
//! | 2..4   | upper 2 bits of the scale of group `g` in bits `2 g` of a 16-bit word                                            |
//! | 4..8   | low 4 bits of the scales: group `2 i` in the low nibble of byte `i`, group `2 i + 1` in the high                 |
//! | 8..136 | codes, 16 bytes a group: value `i` of the group in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = (d * (scale - 32)) * CODEBOOK[code]`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_mul_ps, _mm256_set1_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::iq4_nl::CODEBOOK;
use super::pack::{Packing, Ranges, put_half, put_nibbles};
use super::unpack::{half_at, look_up, nibbles, scale_at};

/// 256 values in 136 bytes.
pub struct Iq4Xs;

/// Groups in a block.
const GROUPS: usize = 8;

impl BlockFormat for Iq4Xs {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 136;
    const GGML_ID: u32 = 23;
    const NAME: &'static str = "IQ4_XS";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_codebook(CODEBOOK, 128, 32).with_group_scales());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15).scales(-32, 31));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        let groups = out[..256].chunks_exact_mut(32).zip(block[8..136].chunks_exact(16));
        for ((out, codes), scale) in groups.zip(scales(block)) {
            look_up(&CODEBOOK, d * f32::from(scale), codes, out);
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.scales[..GROUPS].copy_from_slice(&scales(block));
        for (out, codes) in out.codes.chunks_exact_mut(32).zip(block[8..136].chunks_exact(16)) {
            nibbles(codes, out);
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        block[2..8].fill(0);
        for (group, &scale) in integers.scales[..GROUPS].iter().enumerate() {
            let scale = (scale + 32) as u8;
            block[2 + group / 4] |= (scale >> 4) << (group % 4 * 2);
            block[4 + group / 2] |= (scale & 15) << (group % 2 * 4);
        }
        for (bytes, codes) in block[8..136].chunks_exact_mut(16).zip(integers.codes.chunks_exact(32)) {
            put_nibbles(codes, bytes);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        let scales = scales(block);
        // SAFETY: the caller guarantees the CPU features.
        let d = unsafe { avx2::one_scale_at(block, 0) };
        for (group, (codes, scale)) in block[8..136].chunks_exact(16).zip(scales).enumerate() {
            // SAFETY: the caller guarantees the CPU features.
            unsafe {
                let scale = _mm256_set1_ps(d * f32::from(scale));
                let values = avx2::signed_to_f32(avx2::look_up(&CODEBOOK, codes));
                for (eight, value) in values.into_iter().enumerate() {
                    sink.take(4 * group + eight, _mm256_mul_ps(scale, value));
                }
            }
        }
    }
}

/// The scale of each group as an integer.
#[inline(always)]
fn scales(block: &[u8]) -> [i8; GROUPS] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let mut scales = [0; GROUPS];
    for (group, scale) in scales.iter_mut().enumerate() {
        let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
        let high = (high >> (2 * group)) as u8 & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    scales
}
