//! AVX-512 with VNNI: sixteen outputs per register.

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi8, _mm512_add_epi32,
    _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cmplt_epi32_mask,
    _mm512_cmpneq_epi32_mask, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps,
    _mm512_dpbusd_epi32, _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_i32gather_epi32, _mm512_i32gather_epi64,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_mov_epi32, _mm512_mask_sub_epi8, _mm512_maskz_and_epi32,
    _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_epi32, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_sll_epi32, _mm512_slli_epi16,
    _mm512_slli_epi32, _mm512_sllv_epi32, _mm512_srl_epi32, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_sub_epi32,
    _mm512_ternarylogic_epi32, _mm512_test_epi8_mask,
};
use std::ops::Range;

use super::activations::Block;
use super::avx2::copies_of_byte;
use super::packed::QUADS;
use super::quads::{self, QuadRegisters};
use super::registers::Registers;
use super::rows;
use super::terms::{Terms, Work};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::quant::BlockFormat;
use crate::quant::integer::FLOAT8_BIAS_DIFFERENCE;

/// The registers of AVX-512.
pub(super) struct Zmm;

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, VL) with VNNI, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU features.
    unsafe { run_rows::<F>(task, 0..task.packed().1.rows()) }
}

/// Computes some rows of the task. The first row must start a panel.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run_rows<F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    // SAFETY: this function enables the CPU features.
    unsafe { rows::run_rows::<Zmm, F>(task, rows) }
}

// SAFETY (of every block below): the caller guarantees the CPU features and the validity of the pointers, as the trait
// requires.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Registers for Zmm {
    const LANES: usize = 16;
    const SIGNED_BYTES: bool = false;
    const TILE_ROWS: usize = 8;
    type Integers = __m512i;
    type Floats = __m512;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn call<T: Terms>(work: impl Work) {
        unsafe { work.run::<T>() }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(bytes.cast()) }
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(a: __m512i) -> __m512i {
        unsafe { _mm512_srli_epi16::<BITS>(a) }
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(a: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi16::<BITS>(a) }
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, mask: u8) -> __m512i {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn or_masked(a: __m512i, b: __m512i, mask: u8) -> __m512i {
        // The truth table of a | (b & c).
        unsafe { _mm512_ternarylogic_epi32::<0xf8>(a, b, _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], codes: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), codes) }
    }

    #[inline(always)]
    unsafe fn shift_lanes(a: __m512i, left: i32) -> __m512i {
        unsafe {
            match left {
                0 => a,
                1.. => _mm512_sll_epi32(a, _mm_cvtsi32_si128(left)),
                _ => _mm512_srl_epi32(a, _mm_cvtsi32_si128(-left)),
            }
        }
    }

    #[inline(always)]
    unsafe fn and_lanes(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or_lanes(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn gather(table: *const u32, indices: __m512i) -> __m512i {
        unsafe { _mm512_i32gather_epi32::<4>(indices, table.cast()) }
    }

    #[inline(always)]
    unsafe fn gather_pairs(table: *const u32, indices: __m512i) -> [__m512i; 2] {
        unsafe {
            let first = _mm512_i32gather_epi64::<8>(_mm512_castsi512_si256(indices), table.cast());
            let second = _mm512_i32gather_epi64::<8>(_mm512_extracti64x4_epi64::<1>(indices), table.cast());
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            [_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second)]
        }
    }

    #[inline(always)]
    unsafe fn negate<const QUAD: usize>(a: __m512i, signs: __m512i) -> __m512i {
        unsafe {
            let bit = _mm512_set1_epi32(0x0804_0201 << (QUAD % 2 * 4));
            let spread = _mm512_shuffle_epi8(signs, _mm512_broadcast_i32x4(copies_of_byte(QUAD / 2)));
            _mm512_mask_sub_epi8(a, _mm512_test_epi8_mask(spread, bit), _mm512_setzero_si512(), a)
        }
    }

    #[inline(always)]
    unsafe fn add_to_bytes(a: __m512i, value: u8) -> __m512i {
        unsafe { _mm512_add_epi8(a, _mm512_set1_epi8(value as i8)) }
    }

    #[inline(always)]
    unsafe fn splat_integer(value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_up<const BITS: u32>(a: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    unsafe fn add_dots<const BITS: usize>(
        dots: &mut [[__m512i; 2]],
        codes: &[__m512i; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    ) {
        unsafe { quads::add_dots::<Self, BITS>(dots, codes, activations, bits) }
    }

    #[inline(always)]
    unsafe fn to_floats(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.cast())) }
    }

    #[inline(always)]
    unsafe fn load_powers_of_two(exponents: *const u8) -> __m512 {
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(exponents.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
            // Valid for exponents below 2, and used only for them.
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
            let is_subnormal = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_subnormal, subnormal))
        }
    }

    #[inline(always)]
    unsafe fn load_float8s(bytes: *const u8) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.cast()));
            let number = _mm512_cmpneq_epi32_mask(bytes, _mm512_set1_epi32(127));
            let bits = _mm512_maskz_and_epi32(number, bytes, _mm512_set1_epi32(127));
            let shifted = _mm512_castsi512_ps(_mm512_slli_epi32::<20>(bits));
            _mm512_mul_ps(shifted, _mm512_set1_ps(FLOAT8_BIAS_DIFFERENCE))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.cast()))) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load_floats(values: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(values) }
    }

    #[inline(always)]
    unsafe fn store(a: __m512, out: *mut f32) {
        unsafe { _mm512_storeu_ps(out, a) }
    }
}

// SAFETY (of every block below): as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl QuadRegisters for Zmm {
    #[inline(always)]
    unsafe fn add_dot<const BITS: usize>(sums: __m512i, codes: __m512i, values: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(values.cast::<i32>().read_unaligned())) }
    }
}
