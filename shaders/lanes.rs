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
}
