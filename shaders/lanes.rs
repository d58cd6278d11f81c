//! Eight-lane building blocks that the small kernels share.
//!
//! Each is ordinary Rust over `[f32; 8]` accumulators, inlined into a caller that is compiled once for the portable
//! kernel and once for AVX2 (see [`per_kernel!`](crate::per_kernel)), so the order of every sum is part of the code and
//! the same for any number of rows.

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

/// `y[i] += scale * x[i]`.
#[inline(always)]
pub fn add_scaled<const FMA: bool>(y: &mut [f32], scale: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = multiply_add::<FMA>(scale, *x, *y);
    }
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

/// Compiles a function once for the portable kernel and once for AVX2 + FMA + F16C, and makes the dispatcher.
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
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Kernel::Avx2 => {
                    // The check is a cached flag; it makes a forced kernel on an old machine a panic, not undefined.
                    assert!(kernel.is_supported(), "this machine has no AVX2");
                    // SAFETY: the line above found the instructions on this machine.
                    unsafe { avx2($($arg),*) }
                }
                _ => $body::<false $(, $($generic),+)?>($($arg),*),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
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

    proptest! {
        #[test]
        fn dot_agrees_with_float64(values in prop::collection::vec((-2.0f32..2.0, -2.0f32..2.0), 0..200)) {
            let (a, b): (Vec<f32>, Vec<f32>) = values.iter().copied().unzip();
            let expected: f64 = values.iter().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            prop_assert!((f64::from(dot::<false>(&a, &b)) - expected).abs() < 1e-4);
            prop_assert!((f64::from(dot::<true>(&a, &b)) - expected).abs() < 1e-4);
        }
    }
}
