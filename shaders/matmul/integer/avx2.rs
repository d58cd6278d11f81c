//! AVX2 with or without AVX-VNNI: eight outputs per register.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm_setr_epi32, _mm256_abs_epi8,
    _mm256_add_epi8, _mm256_add_epi32, _mm256_and_si256, _mm256_andnot_si256, _mm256_blendv_epi8,
    _mm256_broadcastsi128_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmpeq_epi8,
    _mm256_cmpeq_epi32, _mm256_cmpgt_epi32, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_dpbusd_avx_epi32, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_i32gather_epi32,
    _mm256_i32gather_epi64, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_or_si256, _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_shuffle_ps, _mm256_sign_epi8, _mm256_sll_epi32,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srl_epi32, _mm256_srli_epi16, _mm256_storeu_ps,
    _mm256_sub_epi8, _mm256_sub_epi32, _mm256_xor_si256,
};

use super::activations::Block;
use super::packed::QUADS;
use super::quads::{self, QuadRegisters};
use super::registers::Registers;
use super::rows;
use super::terms::{Terms, Work};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::quant::BlockFormat;
use crate::quant::integer::FLOAT8_BIAS_DIFFERENCE;

/// Shuffle indices that copy byte `byte` of each 32-bit lane to all bytes of the lane.
///
/// # Safety
/// The CPU must support SSE2, as every x86-64 CPU does.
#[inline(always)]
pub(super) unsafe fn copies_of_byte(byte: usize) -> __m128i {
    let lane = |index: i32| 0x0101_0101 * (4 * index + byte as i32);
    // SAFETY: the caller guarantees the CPU features.
    unsafe { _mm_setr_epi32(lane(0), lane(1), lane(2), lane(3)) }
}

/// The registers of AVX2. With `VNNI`, dot products use AVX-VNNI.
struct Ymm<const VNNI: bool>;

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU features.
    unsafe { rows::run::<Ymm<false>, F>(task) }
}

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX2, FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(in crate::matmul) unsafe fn run_vnni<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU features.
    unsafe { rows::run::<Ymm<true>, F>(task) }
}

/// Implements [`Registers::call`].
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn call<T: Terms>(work: impl Work) {
    // SAFETY: this function enables the CPU features.
    unsafe { work.run::<T>() }
}

/// Implements [`Registers::call`].
///
/// # Safety
/// As [`run_vnni`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline(never)]
unsafe fn call_vnni<T: Terms>(work: impl Work) {
    // SAFETY: this function enables the CPU features.
    unsafe { work.run::<T>() }
}

// SAFETY (of every block below): the caller guarantees the CPU features and the validity of the pointers, as the trait
// requires.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Registers for Ymm<VNNI> {
    const LANES: usize = 8;
    const SIGNED_BYTES: bool = !VNNI;
    const TILE_ROWS: usize = 4;
    type Integers = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn call<T: Terms>(work: impl Work) {
        unsafe { if VNNI { call_vnni::<T>(work) } else { call::<T>(work) } }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(bytes.cast()) }
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(a: __m256i) -> __m256i {
        // The shift count is `i32` in AVX2 intrinsics and `u32` in the trait, so each count is written out.
        unsafe {
            match BITS {
                0 => a,
                1 => _mm256_srli_epi16::<1>(a),
                2 => _mm256_srli_epi16::<2>(a),
                3 => _mm256_srli_epi16::<3>(a),
                4 => _mm256_srli_epi16::<4>(a),
                5 => _mm256_srli_epi16::<5>(a),
                6 => _mm256_srli_epi16::<6>(a),
                _ => _mm256_srli_epi16::<7>(a),
            }
        }
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(a: __m256i) -> __m256i {
        unsafe {
            match BITS {
                0 => a,
                1 => _mm256_slli_epi16::<1>(a),
                2 => _mm256_slli_epi16::<2>(a),
                3 => _mm256_slli_epi16::<3>(a),
                _ => _mm256_slli_epi16::<4>(a),
            }
        }
    }

    #[inline(always)]
    unsafe fn and(a: __m256i, mask: u8) -> __m256i {
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn or_masked(a: __m256i, b: __m256i, mask: u8) -> __m256i {
        unsafe { _mm256_or_si256(a, _mm256_and_si256(b, _mm256_set1_epi8(mask as i8))) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], codes: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), codes) }
    }

    #[inline(always)]
    unsafe fn shift_lanes(a: __m256i, left: i32) -> __m256i {
        unsafe {
            match left {
                0 => a,
                1.. => _mm256_sll_epi32(a, _mm_cvtsi32_si128(left)),
                _ => _mm256_srl_epi32(a, _mm_cvtsi32_si128(-left)),
            }
        }
    }

    #[inline(always)]
    unsafe fn and_lanes(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn or_lanes(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn gather(table: *const u32, indices: __m256i) -> __m256i {
        unsafe { _mm256_i32gather_epi32::<4>(table.cast(), indices) }
    }

    #[inline(always)]
    unsafe fn gather_pairs(table: *const u32, indices: __m256i) -> [__m256i; 2] {
        // The indices in an order in which the shuffles, which work on halves of a register, restore that of the lanes.
        unsafe {
            let indices = _mm256_permute4x64_epi64::<0b11_01_10_00>(indices);
            let first = _mm256_i32gather_epi64::<8>(table.cast(), _mm256_castsi256_si128(indices));
            let second = _mm256_i32gather_epi64::<8>(table.cast(), _mm256_extracti128_si256::<1>(indices));
            let (first, second) = (_mm256_castsi256_ps(first), _mm256_castsi256_ps(second));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(first, second)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn negate<const QUAD: usize>(a: __m256i, signs: __m256i) -> __m256i {
        unsafe {
            let bit = _mm256_set1_epi32(0x0804_0201 << (QUAD % 2 * 4));
            let spread = _mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(copies_of_byte(QUAD / 2)));
            let negative = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
            _mm256_sub_epi8(_mm256_xor_si256(a, negative), negative)
        }
    }

    #[inline(always)]
    unsafe fn add_to_bytes(a: __m256i, value: u8) -> __m256i {
        unsafe { _mm256_add_epi8(a, _mm256_set1_epi8(value as i8)) }
    }

    #[inline(always)]
    unsafe fn splat_integer(value: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_up<const BITS: u32>(a: __m256i) -> __m256i {
        unsafe { _mm256_sllv_epi32(a, _mm256_set1_epi32(BITS as i32)) }
    }

    #[inline(always)]
    unsafe fn add_dots<const BITS: usize>(
        dots: &mut [[__m256i; 2]],
        codes: &[__m256i; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    ) {
        unsafe { quads::add_dots::<Self, BITS>(dots, codes, activations, bits) }
    }

    #[inline(always)]
    unsafe fn to_floats(a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(halves.cast())) }
    }

    #[inline(always)]
    unsafe fn load_powers_of_two(exponents: *const u8) -> __m256 {
        unsafe {
            let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(exponents.cast()));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
            // Valid for exponents below 2, and used only for them.
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
            let is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
            _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_subnormal))
        }
    }

    #[inline(always)]
    unsafe fn load_float8s(bytes: *const u8) -> __m256 {
        unsafe {
            let (bytes, low) = (_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())), _mm256_set1_epi32(127));
            let not_number = _mm256_cmpeq_epi32(bytes, low);
            let bits = _mm256_andnot_si256(not_number, _mm256_and_si256(bytes, low));
            let shifted = _mm256_castsi256_ps(_mm256_slli_epi32::<20>(bits));
            _mm256_mul_ps(shifted, _mm256_set1_ps(FLOAT8_BIAS_DIFFERENCE))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.cast()))) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load_floats(values: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(values) }
    }

    #[inline(always)]
    unsafe fn store(a: __m256, out: *mut f32) {
        unsafe { _mm256_storeu_ps(out, a) }
    }
}

// SAFETY (of every block below): as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> QuadRegisters for Ymm<VNNI> {
    #[inline(always)]
    unsafe fn add_dot<const BITS: usize>(sums: __m256i, codes: __m256i, values: *const i8) -> __m256i {
        unsafe {
            let values = _mm256_set1_epi32(values.cast::<i32>().read_unaligned());
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sums, codes, values);
            }
            // The sum of two products must fit 16 signed bits. So 8-bit codes are converted to signed bytes, and their
            // signs are moved to the values.
            let (codes, values) = if BITS < 8 {
                (codes, values)
            } else {
                let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
                (_mm256_abs_epi8(signed), _mm256_sign_epi8(values, signed))
            };
            let pairs = _mm256_maddubs_epi16(codes, values);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}
