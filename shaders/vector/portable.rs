//! Vectors in portable Rust.

use half::f16;

use super::lanes::{Arithmetic, LANES, Vector};

/// Sixteen values in an array.
#[derive(Clone, Copy)]
pub struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn with(mut self, other: Self, combine: impl Fn(f32, f32) -> f32) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = combine(*a, b);
        }
        self
    }
}

// SAFETY (of every block below): the trait requires valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Arithmetic for Array {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Array([value; LANES])
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
        self.with(factor, |a, b| a * b).with(term, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        self.with(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        Array(self.0.map(|x| unsafe { x.power_of_two() }))
    }
}

// SAFETY (of every block below): the trait requires valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Array {
    const SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat_half(half: f16) -> Self {
        Array([half.to_f32(); LANES])
    }

    #[inline(always)]
    unsafe fn load(values: *const f32) -> Self {
        Array(unsafe { values.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const f16) -> Self {
        Array(unsafe { halves.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const i8) -> Self {
        Array(unsafe { bytes.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store(self, values: *mut f32) {
        unsafe { values.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn where_above(self, x: Self, bound: f32) -> Self {
        self.with(x, |value, x| if x <= bound { 0.0 } else { value })
    }

    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}
