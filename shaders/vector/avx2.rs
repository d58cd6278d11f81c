//! Vectors in two registers of AVX2, with FMA and F16C.

use std::arch::x86_64::{
    __m256, _CMP_NLE_UQ, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128, _mm_max_ps, _mm_movehdup_ps, _mm_movehl_ps,
    _mm_set1_epi16, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use half::f16;

use super::lanes::{Arithmetic, Vector};

/// The first and the last eight values.
#[derive(Clone, Copy)]
pub struct TwoYmm(__m256, __m256);

// SAFETY (of every block below): the trait requires a caller with AVX2, FMA and F16C, and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Arithmetic for TwoYmm {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        let value = unsafe { _mm256_set1_ps(value) };
        TwoYmm(value, value)
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        unsafe { TwoYmm(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        unsafe { TwoYmm(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
        unsafe { TwoYmm(_mm256_fmadd_ps(self.0, factor.0, term.0), _mm256_fmadd_ps(self.1, factor.1, term.1)) }
    }

    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        unsafe { TwoYmm(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        unsafe { TwoYmm(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // The integer is in the low bits; the shift drops the other bits.
        let power = |x: __m256| unsafe {
            let biased = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        TwoYmm(power(self.0), power(self.1))
    }
}

// SAFETY (of every block below): the trait requires a caller with AVX2, FMA and F16C, and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for TwoYmm {
    const SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat_half(half: f16) -> Self {
        let value = unsafe { _mm256_cvtph_ps(_mm_set1_epi16(half.to_bits().cast_signed())) };
        TwoYmm(value, value)
    }

    #[inline(always)]
    unsafe fn load(values: *const f32) -> Self {
        unsafe { TwoYmm(_mm256_loadu_ps(values), _mm256_loadu_ps(values.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const f16) -> Self {
        unsafe {
            TwoYmm(
                _mm256_cvtph_ps(_mm_loadu_si128(halves.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(halves.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const i8) -> Self {
        unsafe {
            TwoYmm(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.add(8).cast()))),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, values: *mut f32) {
        unsafe {
            _mm256_storeu_ps(values, self.0);
            _mm256_storeu_ps(values.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { TwoYmm(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn where_above(self, x: Self, bound: f32) -> Self {
        unsafe {
            let bound = _mm256_set1_ps(bound);
            let of = |value, x| _mm256_and_ps(value, _mm256_cmp_ps::<_CMP_NLE_UQ>(x, bound));
            TwoYmm(of(self.0, x.0), of(self.1, x.1))
        }
    }

    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ps(two, _mm_movehdup_ps(two)))
        }
    }
}
