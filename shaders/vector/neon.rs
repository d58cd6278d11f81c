//! Vectors in four registers of NEON.

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vaddq_s32, vandq_u32, vbslq_f32, vcgtq_f32, vcleq_f32, vcltq_f32, vcvtq_f32_s32,
    vdupq_n_f32, vdupq_n_s32, vfmaq_f32, vget_low_s8, vget_low_s16, vld1_u16, vld1q_f32, vld1q_s8, vmaxnmvq_f32,
    vmovl_high_s8, vmovl_high_s16, vmovl_s8, vmovl_s16, vmulq_f32, vmvnq_u32, vreinterpretq_f32_s32,
    vreinterpretq_f32_u32, vreinterpretq_s32_f32, vreinterpretq_u32_f32, vshlq_n_s32, vst1q_f32, vsubq_f32,
};

use half::f16;

use super::lanes::{Arithmetic, LANES, Vector};
use crate::neon::upconvert_four;

/// Values of a register.
const FOUR: usize = 4;

/// Sixteen values, four by four.
#[derive(Clone, Copy)]
pub struct FourQ([float32x4_t; LANES / FOUR]);

impl FourQ {
    #[inline(always)]
    fn from_each(register: impl FnMut(usize) -> float32x4_t) -> Self {
        FourQ(std::array::from_fn(register))
    }

    #[inline(always)]
    fn with(self, other: Self, combine: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        FourQ::from_each(|index| combine(self.0[index], other.0[index]))
    }
}

// SAFETY (of every block below): NEON is part of every aarch64 CPU, and the trait requires valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Arithmetic for FourQ {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        FourQ([unsafe { vdupq_n_f32(value) }; LANES / FOUR])
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        self.with(other, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        self.with(other, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
        FourQ::from_each(|index| unsafe { vfmaq_f32(term.0[index], self.0[index], factor.0[index]) })
    }

    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        // The instruction for the maximum would give NaN where one of both is NaN.
        self.with(other, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    unsafe fn minimum(self, other: Self) -> Self {
        self.with(other, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // The integer is in the low bits; the shift drops the other bits.
        FourQ(self.0.map(|x| unsafe {
            let biased = vaddq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        }))
    }
}

// SAFETY (of every block below): NEON is part of every aarch64 CPU, and the trait requires valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for FourQ {
    const SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat_half(half: f16) -> Self {
        unsafe { Self::splat(half.to_f32()) }
    }

    #[inline(always)]
    unsafe fn load(values: *const f32) -> Self {
        FourQ::from_each(|index| unsafe { vld1q_f32(values.add(FOUR * index)) })
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const f16) -> Self {
        FourQ::from_each(|index| unsafe { upconvert_four(vld1_u16(halves.add(FOUR * index).cast())) })
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const i8) -> Self {
        let integers = unsafe {
            let bytes = vld1q_s8(bytes);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        };
        FourQ(integers.map(|integers| unsafe { vcvtq_f32_s32(integers) }))
    }

    #[inline(always)]
    unsafe fn store(self, values: *mut f32) {
        for (index, register) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(values.add(FOUR * index), register) };
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.with(other, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn where_above(self, x: Self, bound: f32) -> Self {
        self.with(x, |value, x| unsafe {
            let at_most = vcleq_f32(x, vdupq_n_f32(bound));
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), vmvnq_u32(at_most)))
        })
    }

    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        let [a, b, c, d] = self.0;
        let greater = |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) };
        unsafe { vmaxnmvq_f32(greater(greater(a, b), greater(c, d))) }
    }
}
