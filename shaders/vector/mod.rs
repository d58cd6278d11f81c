//! Sixteen float32 as one value, in the registers of each instruction set.
//!
//! A kernel that is written once over [`Vector`] has the same order of operations in every instruction set; only whether
//! a product and a sum are rounded together differs between the portable one and the others.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod portable;

use half::f16;

/// Values of a vector.
pub const LANES: usize = 16;

/// Sixteen float32, side by side.
///
/// Every function is inlined into a function that is compiled for the instruction set, which is what each asks of its
/// caller; pointers must be good for what is read or written, and need no alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Vector: Copy {
    /// How many running sums the registers hold beside what feeds them.
    const SUMS: usize;

    /// One value in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// One half in every lane.
    unsafe fn splat_half(half: f16) -> Self;
    /// Sixteen values.
    unsafe fn load(values: *const f32) -> Self;
    /// Sixteen halves.
    unsafe fn load_halves(halves: *const f16) -> Self;
    /// Sixteen signed bytes.
    unsafe fn load_bytes(bytes: *const i8) -> Self;
    /// Writes sixteen values.
    unsafe fn store(self, values: *mut f32);
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn subtract(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn multiply(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once where the instruction set can.
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self;
    /// The greater of each two, and `other` where one of them is NaN.
    unsafe fn maximum(self, other: Self) -> Self;
    /// The lesser of each two, and `other` where one of them is NaN.
    unsafe fn minimum(self, other: Self) -> Self;
    /// `2^n` in each lane, which has the bits of `n + 1.5 * 2^23` for a whole `n` from -126 to 127.
    unsafe fn power_of_two(self) -> Self;
    /// Where `x` is at most `bound` 0, elsewhere (also where it is NaN) this.
    unsafe fn where_above(self, x: Self, bound: f32) -> Self;
    /// The greatest of all lanes; if one of them is NaN, any of them.
    unsafe fn greatest(self) -> f32;
}

/// `e^x` in each lane to about one unit in the last place, see [`lanes::exp`](crate::lanes::exp).
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub unsafe fn exp<V: Vector>(x: V) -> V {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: the caller has the instruction set.
    unsafe {
        let x = V::splat(88.0).minimum(V::splat(-87.0).maximum(x));
        let rounded = x.multiply_add(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
        let n = rounded.subtract(V::splat(ROUND));
        let r = n.multiply_add(V::splat(-LN_2_HIGH), x);
        let r = n.multiply_add(V::splat(-LN_2_LOW), r);
        let mut series = V::splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = series.multiply_add(r, V::splat(coefficient));
        }
        series.multiply(rounded.power_of_two())
    }
}

/// Makes a function that runs `body::<V>` with the vectors of a [`Kernel`](crate::cpu::Kernel), which it takes first,
/// compiled for its instruction set.
#[macro_export]
macro_rules! per_vector {
    ($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident ($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(kernel: $crate::cpu::Kernel, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                // SAFETY: this function has the features.
                unsafe { $body::<$crate::vector::avx2::TwoYmm>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $type),*) {
                // SAFETY: this function has the features.
                unsafe { $body::<$crate::vector::avx512::Zmm>($($arg),*) }
            }
            assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
            match kernel {
                // SAFETY: the portable vectors ask nothing of the machine.
                $crate::cpu::Kernel::Scalar => unsafe { $body::<$crate::vector::portable::Array>($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the kernel needs these instructions, and is supported by the line above.
                $crate::cpu::Kernel::Avx512Vnni | $crate::cpu::Kernel::AmxInt8 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: every other kernel needs AVX2, FMA and F16C, and is supported by the line above.
                _ => unsafe { avx2($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("this machine cannot run the {kernel} kernel"),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::supported_kernels;

    unsafe fn exp_of_each<V: Vector>(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y.as_chunks_mut::<LANES>().0) {
            // SAFETY: both are sixteen values; the caller has the instruction set.
            unsafe { exp(V::load(x.as_ptr())).store(y.as_mut_ptr()) };
        }
    }
    per_vector! { fn vector_exp = exp_of_each(x: &[f32], y: &mut [f32]) }

    #[test]
    fn exp_agrees_with_the_library_in_every_instruction_set() {
        let x: Vec<f32> = (0..17_504).map(|step| (step - 8_700) as f32 / 100.0).collect();
        for kernel in supported_kernels() {
            let mut y = vec![0.0; x.len()];
            vector_exp(kernel, &x, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let relative = (f64::from(*y) / f64::from(x.min(88.0)).exp() - 1.0).abs();
                assert!(relative < 3e-7, "{kernel}: exp({x}) is off by {relative:e}");
            }
            let special = [0.0, f32::NEG_INFINITY, f32::NAN];
            let x: Vec<f32> = (0..LANES).map(|lane| special[lane % 3]).collect();
            vector_exp(kernel, &x, &mut y[..LANES]);
            assert!(y[0] == 1.0 && y[1] < 1e-37 && y[2].is_nan(), "{kernel}: {:?}", &y[..3]);
        }
    }

    unsafe fn convert<V: Vector>(halves: &[f16], bytes: &[i8], y: &mut [f32]) {
        for (start, y) in (0..).step_by(LANES).zip(y.as_chunks_mut::<LANES>().0) {
            let (halves, bytes) = (&halves[start..start + LANES], &bytes[start..start + LANES]);
            // SAFETY: each is sixteen values; the caller has the instruction set.
            unsafe { V::load_halves(halves.as_ptr()).add(V::load_bytes(bytes.as_ptr())).store(y.as_mut_ptr()) };
        }
    }
    per_vector! { fn vector_convert = convert(halves: &[f16], bytes: &[i8], y: &mut [f32]) }

    unsafe fn greatest_of_each<V: Vector>(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y) {
            // SAFETY: sixteen values; the caller has the instruction set.
            *y = unsafe { V::load(x.as_ptr()).greatest() };
        }
    }
    per_vector! { fn vector_greatest = greatest_of_each(x: &[f32], y: &mut [f32]) }

    #[test]
    fn halves_and_bytes_are_widened_exactly() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|half| half.is_finite()).collect();
        let halves = &halves[..halves.len() / LANES * LANES];
        let bytes: Vec<i8> = (0..halves.len()).map(|index| index as i8).collect();
        let expected: Vec<f32> =
            halves.iter().zip(&bytes).map(|(half, byte)| half.to_f32() + f32::from(*byte)).collect();
        for kernel in supported_kernels() {
            let mut found = vec![f32::NAN; halves.len()];
            vector_convert(kernel, halves, &bytes, &mut found);
            assert_eq!(found, expected, "{kernel}");
        }
    }

    #[test]
    fn the_greatest_is_found_in_every_lane() {
        for kernel in supported_kernels() {
            for place in 0..LANES {
                let x: Vec<f32> =
                    (0..LANES).map(|lane| if lane == place { -1.0 } else { -2.0 - lane as f32 }).collect();
                let mut found = [0.0];
                vector_greatest(kernel, &x, &mut found);
                assert_eq!(found, [-1.0], "{kernel}: lane {place}");
            }
        }
    }
}
