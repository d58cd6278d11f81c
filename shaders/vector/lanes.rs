//! The trait that vectors of every instruction set implement.

use half::f16;

/// Values of a vector.
pub const LANES: usize = 16;

/// The arithmetic of one float32, or of several side by side.
///
/// Every function is inlined into a function that is compiled for the instruction set of its caller.
///
/// # Safety
/// The caller has the instruction set of the implementing type. `f32` needs none.
#[allow(clippy::missing_safety_doc)]
pub trait Arithmetic: Copy {
    /// One value in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// `self - other`.
    unsafe fn subtract(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn multiply(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once where the instruction set can.
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self;
    /// The greater of each pair, or `other` where one of them is NaN.
    unsafe fn maximum(self, other: Self) -> Self;
    /// The lesser of each pair, or `other` where one of them is NaN.
    unsafe fn minimum(self, other: Self) -> Self;
    /// `2^n` in each lane, whose bits are those of `n + 1.5 * 2^23` for an integer `n` from -126 to 127.
    unsafe fn power_of_two(self) -> Self;
}

/// Sixteen float32, side by side.
///
/// The requirements are those of [`Arithmetic`]. Pointers must be valid for what is read or written, and need no
/// alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Vector: Arithmetic {
    /// How many running sums fit the registers, next to the values that are added.
    const SUMS: usize;

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
    /// 0 where `x` is at most `bound`; this value elsewhere, also where `x` is NaN.
    unsafe fn where_above(self, x: Self, bound: f32) -> Self;
    /// The greatest of all lanes. If a lane is NaN, the result is any of them.
    unsafe fn greatest(self) -> f32;
}
