//! Sixteen float32 as one value, in the registers of each instruction set.
//!
//! - `lanes`: the traits that the vectors implement
//! - [`portable`], `avx2`, `avx512`, `neon`: the vectors of each instruction set
//! - `exp`: the exponential function
//! - `some`: vectors of which only the first lanes are used
//!
//! A kernel that is written once over [`Vector`] has the same order of operations in every instruction set. Only the
//! portable vectors round a product and the following sum separately; the others round them once.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod exp;
mod lanes;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod portable;
mod some;

pub use exp::exp;
pub use lanes::{Arithmetic, LANES, Vector};
pub use some::{load_some, store_some};

/// Defines a function whose first argument is a [`Kernel`](crate::cpu::Kernel). It runs `body::<V>` with the vectors of
/// that kernel, compiled for its instruction set. An `unsafe fn` passes the other conditions of its body on to its caller.
#[macro_export]
macro_rules! per_vector {
    (@call $kernel:ident $body:ident ($($arg:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2($($arg: $type),*) {
            // SAFETY: this function has the features, and the caller fulfils the other conditions.
            unsafe { $body::<$crate::vector::avx2::TwoYmm>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512($($arg: $type),*) {
            // SAFETY: as above.
            unsafe { $body::<$crate::vector::avx512::Zmm>($($arg),*) }
        }
        assert!($kernel.is_supported(), "this machine cannot run the {} kernel", $kernel);
        // SAFETY: the kernel needs these instructions, and is supported by the line above. The caller fulfils the other conditions.
        unsafe {
            match $kernel.instruction_set() {
                $crate::cpu::InstructionSet::Portable => $body::<$crate::vector::portable::Array>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::InstructionSet::Avx2 => avx2($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::InstructionSet::Avx512 => avx512($($arg),*),
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::InstructionSet::Neon => $body::<$crate::vector::neon::FourQ>($($arg),*),
                _ => unreachable!("this machine cannot run the {} kernel", $kernel),
            }
        }
    }};
    ($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident ($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(kernel: $crate::cpu::Kernel, $($arg: $type),*) {
            $crate::per_vector!(@call kernel $body ($($arg: $type),*))
        }
    };
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident = $body:ident ($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis unsafe fn $name(kernel: $crate::cpu::Kernel, $($arg: $type),*) {
            $crate::per_vector!(@call kernel $body ($($arg: $type),*))
        }
    };
}

#[cfg(test)]
mod tests {
    use half::f16;

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
    fn halves_and_bytes_are_upconverted_exactly() {
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
            for greatest in 0..LANES {
                let x: Vec<f32> =
                    (0..LANES).map(|lane| if lane == greatest { -1.0 } else { -2.0 - lane as f32 }).collect();
                let mut found = [0.0];
                vector_greatest(kernel, &x, &mut found);
                assert_eq!(found, [-1.0], "{kernel}: lane {greatest}");
            }
        }
    }
}
