//! Eight-lane building blocks that the small kernels share.
//!
//! Each is ordinary Rust over `[f32; 8]` accumulators, inlined into a caller that is compiled once for the portable
//! kernel and once for AVX2 (see [`per_kernel!`](crate::per_kernel)), so the order of every sum is part of the code and
//! the same for any number of rows.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Lanes of an AVX2 register of f32.
pub const LANES: usize = 8;

/// Sums the lanes pairwise, in one fixed order.
#[inline(always)]
pub fn horizontal_sum(lanes: [f32; LANES]) -> f32 {
    ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]))
}

/// `sum_i a[i] * b[i]` over the shorter of the two.
#[inline(always)]
pub fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut even = [0.0f32; LANES];
    let mut odd = [0.0f32; LANES];
    let mut a_pairs = a.chunks_exact(2 * LANES);
    let mut b_pairs = b.chunks_exact(2 * LANES);
    for (a, b) in a_pairs.by_ref().zip(b_pairs.by_ref()) {
        for lane in 0..LANES {
            even[lane] = multiply_add::<FMA>(a[lane], b[lane], even[lane]);
            odd[lane] = multiply_add::<FMA>(a[LANES + lane], b[LANES + lane], odd[lane]);
        }
    }
    for (index, (a, b)) in a_pairs.remainder().iter().zip(b_pairs.remainder()).enumerate() {
        even[index % LANES] = multiply_add::<FMA>(*a, *b, even[index % LANES]);
    }
    for lane in 0..LANES {
        even[lane] += odd[lane];
    }
    horizontal_sum(even)
}

/// `y[i] += sum_s weights[s] * rows[s * y.len() + i]`, in the order of the rows.
///
/// The sums stay in registers from row to row, so this is faster than adding one scaled row after the other.
#[inline(always)]
pub fn add_weighted_rows<const FMA: bool>(y: &mut [f32], weights: &[f32], rows: &[f32]) {
    const WIDE: usize = 4 * LANES;
    let len = y.len();
    let mut start = 0;
    while start + WIDE <= len {
        let mut sums: [f32; WIDE] = std::array::from_fn(|lane| y[start + lane]);
        for (weight, row) in weights.iter().zip(rows.chunks_exact(len)) {
            let row = &row[start..start + WIDE];
            for lane in 0..WIDE {
                sums[lane] = multiply_add::<FMA>(*weight, row[lane], sums[lane]);
            }
        }
        y[start..start + WIDE].copy_from_slice(&sums);
        start += WIDE;
    }
    for (weight, row) in weights.iter().zip(rows.chunks_exact(len)) {
        for (y, x) in y[start..].iter_mut().zip(&row[start..]) {
            *y = multiply_add::<FMA>(*weight, *x, *y);
        }
    }
}

/// Half precision to single, over the shorter of the two.
///
/// # Safety
/// With `FMA` the machine must have F16C.
#[inline(always)]
pub(crate) unsafe fn widen<const FMA: bool>(half: &[f16], single: &mut [f32]) {
    let len = half.len().min(single.len());
    let (half, single) = (&half[..len], &mut single[..len]);
    #[cfg(target_arch = "x86_64")]
    if FMA {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let whole = len - len % LANES;
        for (half, single) in half.chunks_exact(LANES).zip(single.chunks_exact_mut(LANES)) {
            // SAFETY: both chunks have LANES values, and F16C is there by the caller's promise.
            unsafe { _mm256_storeu_ps(single.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(half.as_ptr().cast()))) };
        }
        for (half, single) in half[whole..].iter().zip(&mut single[whole..]) {
            *single = half.to_f32();
        }
        return;
    }
    half.convert_to_f32_slice(single);
}

/// `a * b + c`, fused where the instruction set has it.
#[inline(always)]
pub fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` to about one unit in the last place, without branches so that it vectorises.
///
/// Splits `x = n ln 2 + r` with `|r| <= ln 2 / 2`, sums the Taylor series of `e^r` to the seventh power (remainder below
/// 6e-9) and scales by `2^n`. Arguments are clamped to where the result is a normal number.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let power = f32::from_bits((((n as i32) + 127) << 23) as u32);
    series * power
}

/// Compiles a function once for the portable kernel and once for AVX2 + FMA + F16C, which all others have, and makes the
/// dispatcher.
///
/// The body is generic over `const FMA: bool`; the dispatcher takes a [`Kernel`](crate::cpu::Kernel) first.
#[macro_export]
macro_rules! per_kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident $(<$($generic:ident: $bound:path),+>)? ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($generic: $bound),+>)? (kernel: $crate::cpu::Kernel, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2 $(<$($generic: $bound),+>)? ($($arg: $type),*) $(-> $result)? {
                $body::<true $(, $($generic),+)?>($($arg),*)
            }
            match kernel {
                $crate::cpu::Kernel::Scalar => $body::<false $(, $($generic),+)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                _ => {
                    // The check is a cached flag; it makes a forced kernel on an old machine a panic, not undefined.
                    assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
                    // SAFETY: every other kernel needs AVX2, FMA and F16C, and is supported by the line above.
                    unsafe { avx2($($arg),*) }
                }
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("this machine cannot run the {kernel} kernel"),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Kernel;
    use crate::testing::{assert_close, values};
    use proptest::prelude::*;

    #[test]
    fn exp_agrees_with_the_library_over_its_range() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            let relative = (f64::from(exp(x)) / expected - 1.0).abs();
            assert!(relative < 3e-7, "exp({x}) is off by {relative:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn widening_is_exact_in_every_kernel() {
        let half: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|value| !value.is_nan()).collect();
        for len in [half.len(), half.len() - 3] {
            let expected: Vec<f32> = half[..len].iter().map(|value| value.to_f32()).collect();
            let mut found = vec![0.0; len];
            // SAFETY: without FMA nothing is asked of the machine.
            unsafe { widen::<false>(&half, &mut found) };
            assert_eq!(found, expected);
            if Kernel::Avx2.is_supported() {
                found.fill(0.0);
                // SAFETY: the line above found F16C.
                unsafe { widen::<true>(&half, &mut found) };
                assert_eq!(found, expected);
            }
        }
    }

    proptest! {
        #[test]
        fn weighted_rows_agree_with_float64(len in 1usize..100, rows in 0usize..17, seed: u64) {
            let (y, weights) = (values(seed, len), values(seed ^ 1, rows));
            let matrix = values(seed ^ 2, rows * len);
            let expected: Vec<f64> = (0..len)
                .map(|i| f64::from(y[i]) + (0..rows).map(|s| f64::from(weights[s]) * f64::from(matrix[s * len + i])).sum::<f64>())
                .collect();
            for fused in [false, true] {
                let mut found = y.clone();
                let add = if fused { add_weighted_rows::<true> } else { add_weighted_rows::<false> };
                add(&mut found, &weights, &matrix);
                assert_close(&found, &expected, 1e-5);
            }
        }

        #[test]
        fn dot_agrees_with_float64(values in prop::collection::vec((-2.0f32..2.0, -2.0f32..2.0), 0..200)) {
            let (a, b): (Vec<f32>, Vec<f32>) = values.iter().copied().unzip();
            let expected: f64 = values.iter().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            prop_assert!((f64::from(dot::<false>(&a, &b)) - expected).abs() < 1e-4);
            prop_assert!((f64::from(dot::<true>(&a, &b)) - expected).abs() < 1e-4);
        }
    }
}
