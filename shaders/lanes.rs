//! Functions over eight lanes that the small kernels share.
//!
//! Each is ordinary Rust over `[f32; 8]` accumulators, inlined into a caller that is compiled for each instruction set
//! (see [`per_kernel!`](crate::per_kernel)). So the order of every sum is part of the code and the same for any number
//! of rows.

/// Lanes of an AVX2 register of f32.
pub const LANES: usize = 8;

/// The sum of all lanes, always added in this order: that of halving an AVX2 register until one lane is left.
#[inline(always)]
pub fn horizontal_sum(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// `a * b + c`, fused if the instruction set has it.
#[inline(always)]
pub fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The sum of all values, in the lanes' fixed order.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for chunk in x.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x;
        }
    }
    horizontal_sum(sums)
}

/// The sum of the squared distances from `mean`, in the lanes' fixed order.
#[inline(always)]
pub fn sum_of_squares<const FMA: bool>(x: &[f32], mean: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for chunk in x.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum = multiply_add::<FMA>(x - mean, x - mean, *sum);
        }
    }
    horizontal_sum(sums)
}

/// `e^x` to about one unit in the last digit, without branches so that it vectorises: see
/// [`vector::exp`](crate::vector::exp).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // SAFETY: a single value needs no instruction set.
    unsafe { crate::vector::exp(x) }
}

/// The value, or zero for one that is negligible next to any other result of an activation.
///
/// Products with such values can be subnormal, which CPUs compute a hundred times slower.
#[inline(always)]
pub fn without_negligible(x: f32) -> f32 {
    const LEAST: f32 = 1e-30;
    if x.abs() < LEAST { 0.0 } else { x }
}

/// `ln(1 + e^x)`, without branches so that it vectorises, with a relative error below 1e-6.
///
/// It is `max(x, 0) + ln(1 + t)` with `t = e^-|x|`. The logarithm is the series `2 (s + s^3/3 + s^5/5 + ...)` of
/// `s = t / (2 + t)`, which is at most 1/3: the terms after the 15th power are below 4e-9 of the sum.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let t = exp(-x.abs());
    let s = t / (2.0 + t);
    let square = s * s;
    let mut series = 1.0 / 15.0;
    for coefficient in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        series = series * square + coefficient;
    }
    x.max(0.0) + 2.0 * s * series
}

/// The hyperbolic tangent, without branches so that it vectorises, with a relative error below 1e-6 for small values too.
///
/// Near 0 it is a polynomial, elsewhere `1 - 2 / (1 + e^2x)`. Source: Moshier 1992, "Cephes Mathematical Library", tanhf.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    const SMALL: f32 = 0.625;
    let square = x * x;
    let mut series = -5.704_988_7e-3;
    for coefficient in [2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        series = series * square + coefficient;
    }
    let small = x + x * square * series;
    let large = 1.0 - 2.0 / (1.0 + exp(2.0 * x));
    if x.abs() < SMALL { small } else { large }
}

/// Compiles a function for each [instruction set](crate::cpu::InstructionSet), and defines the dispatcher.
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
            // The check is a cached flag. With it, a forced kernel on an old machine panics instead of being undefined.
            assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
            match kernel.instruction_set() {
                $crate::cpu::InstructionSet::Portable => $body::<false $(, $($generic),+)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the kernel needs these instructions, and is supported by the line above.
                $crate::cpu::InstructionSet::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::cpu::InstructionSet::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::InstructionSet::Neon => $body::<true $(, $($generic),+)?>($($arg),*),
                _ => unreachable!("this machine cannot run the {kernel} kernel"),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_agrees_with_the_library_over_its_range() {
        for step in -8000..=8800 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp().ln_1p();
            let relative = (f64::from(softplus(x)) / expected - 1.0).abs();
            assert!(relative < 1e-6, "softplus({x}) is off by {relative:e}");
        }
        assert!(softplus(f32::INFINITY).is_infinite() && softplus(f32::NAN).is_nan());
    }

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
    fn only_negligible_values_become_zero() {
        for x in [0.0, -0.0, 9e-31, -9e-31, 1e-40, f32::MIN_POSITIVE] {
            assert_eq!(without_negligible(x), 0.0);
        }
        for x in [1e-30, -1e-30, 1.5, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(without_negligible(x), x);
        }
        assert!(without_negligible(f32::NAN).is_nan());
    }
}
