//! Eight-lane building blocks that the small kernels share.
//!
//! Each is ordinary Rust over `[f32; 8]` accumulators, inlined into a caller that is compiled once for the portable
//! kernel and once for AVX2 (see [`per_kernel!`](crate::per_kernel)), so the order of every sum is part of the code and
//! the same for any number of rows.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Lanes of an AVX2 register of f32.
pub const LANES: usize = 8;

/// Sums the lanes pairwise, in one fixed order.
#[inline(always)]
pub fn horizontal_sum(lanes: [f32; LANES]) -> f32 {
    ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]))
}

/// `y[q][i] += sum_s weights[q][s] * rows[s * width + i]` over the rows in `range`, in their order; every `y[q]` is `width`
/// long.
///
/// The sums stay in registers from row to row, and a row is read once for all the `q`.
#[inline(always)]
pub fn add_weighted_rows<const FMA: bool, const N: usize, const ROWS: usize>(
    y: &mut [&mut [f32]; N],
    weights: &[[f32; ROWS]; N],
    rows: &[f32],
    range: Range<usize>,
) {
    const WIDE: usize = 4 * LANES;
    let width = y[0].len();
    assert!(range.end <= ROWS && rows.len() >= range.end * width && y.iter().all(|y| y.len() == width));
    let whole = width - width % WIDE;
    for start in (0..whole).step_by(WIDE) {
        let mut sums = [[0.0; WIDE]; N];
        for (sums, y) in sums.iter_mut().zip(y.iter()) {
            sums.copy_from_slice(&y[start..start + WIDE]);
        }
        for slot in range.clone() {
            let row = &rows[slot * width + start..][..WIDE];
            for query in 0..N {
                for lane in 0..WIDE {
                    sums[query][lane] = multiply_add::<FMA>(weights[query][slot], row[lane], sums[query][lane]);
                }
            }
        }
        for (sums, y) in sums.iter().zip(y.iter_mut()) {
            y[start..start + WIDE].copy_from_slice(sums);
        }
    }
    for slot in range {
        for (y, weights) in y.iter_mut().zip(weights) {
            for (y, x) in y[whole..].iter_mut().zip(&rows[slot * width + whole..(slot + 1) * width]) {
                *y = multiply_add::<FMA>(weights[slot], *x, *y);
            }
        }
    }
}

/// `sum_i x[n][i] * columns[i * LEN + l]` for each of some vectors `x[n]` and each `l`: lanes are different sums, so none
/// is ever split. Two chains for each, of even and odd `i`, hide the latency of additions.
#[inline(always)]
pub fn dot_columns<const FMA: bool, const N: usize, const LEN: usize>(
    x: [&[f32]; N],
    columns: &[f32],
) -> [[f32; LEN]; N] {
    let len = x[0].len();
    let columns = &columns.as_chunks::<LEN>().0[..len];
    let (pairs, last) = columns.as_chunks::<2>();
    let (mut even, mut odd) = ([[0.0; LEN]; N], [[0.0; LEN]; N]);
    // By value, so that a column is loaded once and not for each `n`.
    for (index, [first, second]) in pairs.iter().copied().enumerate() {
        for n in 0..N {
            let (a, b) = (x[n][2 * index], x[n][2 * index + 1]);
            for lane in 0..LEN {
                even[n][lane] = multiply_add::<FMA>(a, first[lane], even[n][lane]);
                odd[n][lane] = multiply_add::<FMA>(b, second[lane], odd[n][lane]);
            }
        }
    }
    for n in 0..N {
        for column in last {
            for lane in 0..LEN {
                even[n][lane] = multiply_add::<FMA>(x[n][len - 1], column[lane], even[n][lane]);
            }
        }
        for lane in 0..LEN {
            even[n][lane] += odd[n][lane];
        }
    }
    even
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
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    // The integer is in the low bits of the rounded sum; a cast would have to look out for NaN.
    let power = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    series * power
}

/// Compiles a function once for the portable kernel, once for AVX2 + FMA + F16C and once for AVX-512, and makes the
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
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512 $(<$($generic: $bound),+>)? ($($arg: $type),*) $(-> $result)? {
                $body::<true $(, $($generic),+)?>($($arg),*)
            }
            match kernel {
                $crate::cpu::Kernel::Scalar => $body::<false $(, $($generic),+)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Kernel::Avx512Vnni | $crate::cpu::Kernel::AmxInt8 => {
                    assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
                    // SAFETY: the kernel needs these instructions, and is supported by the line above.
                    unsafe { avx512($($arg),*) }
                }
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
        fn weighted_rows_agree_with_float64(len in 1usize..100, first in 0usize..8, rows in 0usize..9, seed: u64) {
            let (y, weights) = ([values(seed, len), values(seed ^ 1, len)], [values(seed ^ 2, 16), values(seed ^ 3, 16)]);
            let matrix = values(seed ^ 4, 16 * len);
            let range = first..first + rows;
            for fused in [false, true] {
                let mut found = y.clone();
                let [a, b] = &mut found;
                let add = if fused { add_weighted_rows::<true, 2, 16> } else { add_weighted_rows::<false, 2, 16> };
                let arrays = [0, 1].map(|n| weights[n][..].try_into().expect("there are 16"));
                add(&mut [a, b], &arrays, &matrix, range.clone());
                for n in 0..2 {
                    let sum = |i: usize| range.clone().map(|s| f64::from(weights[n][s]) * f64::from(matrix[s * len + i])).sum::<f64>();
                    let expected: Vec<f64> = (0..len).map(|i| f64::from(y[n][i]) + sum(i)).collect();
                    assert_close(&found[n], &expected, 1e-5);
                }
            }
        }

        #[test]
        fn dots_with_columns_agree_with_float64(len in 1usize..100, seed: u64) {
            let x = [values(seed, len), values(seed ^ 1, len), values(seed ^ 2, len)];
            let matrix = values(seed ^ 3, 16 * len);
            for fused in [false, true] {
                let dot = if fused { dot_columns::<true, 3, 16> } else { dot_columns::<false, 3, 16> };
                for (found, x) in dot([&x[0], &x[1], &x[2]], &matrix).iter().zip(&x) {
                    let sum = |l: usize| (0..len).map(|i| f64::from(x[i]) * f64::from(matrix[i * 16 + l])).sum::<f64>();
                    assert_close(found, &(0..16).map(sum).collect::<Vec<_>>(), 1e-5);
                }
            }
        }
    }
}
