//! Vectors in one register of AVX-512.

use std::arch::x86_64::{
    __m512, _CMP_NLE_UQ, _mm_loadu_si128, _mm256_loadu_si256, _mm256_set1_epi16, _mm512_add_epi32, _mm512_add_ps,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps,
    _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps,
    _mm512_mul_ps, _mm512_reduce_max_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use half::f16;

use super::lanes::{Arithmetic, Vector};

/// One register.
#[derive(Clone, Copy)]
pub struct Zmm(__m512);

// SAFETY (of every block below): the trait requires a caller with AVX-512, and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Arithmetic for Zmm {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Zmm(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        Zmm(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        Zmm(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
        Zmm(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
    }

    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        Zmm(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        Zmm(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // The integer is in the low bits; the shift drops the other bits.
        let biased = unsafe { _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127)) };
        Zmm(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)) })
    }
}

// SAFETY (of every block below): the trait requires a caller with AVX-512, and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Zmm {
    const SUMS: usize = 16;

    #[inline(always)]
    unsafe fn splat_half(half: f16) -> Self {
        Zmm(unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(half.to_bits().cast_signed())) })
    }

    #[inline(always)]
    unsafe fn load(values: *const f32) -> Self {
        Zmm(unsafe { _mm512_loadu_ps(values) })
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const f16) -> Self {
        Zmm(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const i8) -> Self {
        Zmm(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.cast()))) })
    }

    #[inline(always)]
    unsafe fn store(self, values: *mut f32) {
        unsafe { _mm512_storeu_ps(values, self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Zmm(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn where_above(self, x: Self, bound: f32) -> Self {
        unsafe {
            let above = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x.0, _mm512_set1_ps(bound));
            Zmm(_mm512_maskz_mov_ps(above, self.0))
        }
    }

    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
