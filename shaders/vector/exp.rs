//! The exponential function: one formula for a single value and for vectors.

use super::lanes::Arithmetic;

/// Adding and subtracting `1.5 * 2^23` rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// `e^x` in each lane to about one unit in the last digit, without branches.
///
/// Splits `x = n ln 2 + r` with `|r| <= ln 2 / 2`, sums the Taylor series of `e^r` to the seventh power (remainder
/// below 6e-9) and scales by `2^n`. Arguments are clamped to the range in which the result is a normal number.
///
/// # Safety
/// As [`Arithmetic`].
#[inline(always)]
pub unsafe fn exp<A: Arithmetic>(x: A) -> A {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the caller has the instruction set.
    unsafe {
        let x = A::splat(88.0).minimum(A::splat(-87.0).maximum(x));
        let rounded = x.multiply_add(A::splat(std::f32::consts::LOG2_E), A::splat(ROUND));
        let n = rounded.subtract(A::splat(ROUND));
        let r = n.multiply_add(A::splat(-LN_2_HIGH), x);
        let r = n.multiply_add(A::splat(-LN_2_LOW), r);
        let mut series = A::splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = series.multiply_add(r, A::splat(coefficient));
        }
        series.multiply(rounded.power_of_two())
    }
}

// Compiled for any instruction set, and for vectors of several values where a loop allows it.
impl Arithmetic for f32 {
    #[inline(always)]
    unsafe fn splat(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    unsafe fn subtract(self, other: f32) -> f32 {
        self - other
    }

    #[inline(always)]
    unsafe fn multiply(self, other: f32) -> f32 {
        self * other
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: f32, term: f32) -> f32 {
        self * factor + term
    }

    #[inline(always)]
    unsafe fn maximum(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }

    #[inline(always)]
    unsafe fn minimum(self, other: f32) -> f32 {
        if self < other { self } else { other }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> f32 {
        // The integer is in the low bits.
        f32::from_bits(self.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23)
    }
}
