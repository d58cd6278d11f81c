//! NEON: four outputs per register.
//!
//! - `products`: the ways to multiply, by the extensions that a CPU has

mod products;

use std::arch::aarch64::{
    float32x4_t, int32x4_t, uint8x16_t, uint32x4_t, vaddq_s32, vaddq_u8, vandq_s32, vandq_u8, vandq_u32, vbicq_u32,
    vbslq_u32, vceqq_u32, vcltq_u32, vcreate_u8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vdupq_n_u32,
    veorq_u8, vfmaq_f32, vget_low_s16, vget_low_u16, vld1_u16, vld1q_f32, vld1q_u8, vld1q_u32, vld2q_u32, vmovl_s8,
    vmovl_s16, vmovl_u8, vmovl_u16, vmulq_f32, vorrq_s32, vorrq_u8, vqtbl1q_u8, vreinterpret_s8_u8,
    vreinterpretq_f32_u32, vreinterpretq_s32_u8, vreinterpretq_s32_u16, vreinterpretq_s32_u32, vreinterpretq_u8_s32,
    vreinterpretq_u8_u32, vreinterpretq_u16_s32, vreinterpretq_u32_s32, vshlq_n_u16, vshlq_n_u32, vshlq_s32, vshlq_u32,
    vshrq_n_u16, vst1q_f32, vsubq_s32, vsubq_u8, vsubq_u32, vtstq_u8,
};
use std::marker::PhantomData;

use super::activations::Block;
use super::packed::QUADS;
use super::registers::Registers;
use super::rows;
use super::terms::{Terms, Work};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::neon::upconvert_four;
use crate::quant::BlockFormat;
use crate::quant::integer::FLOAT8_BIAS_DIFFERENCE;
use products::{Dots, Matrices, Multiplies, Products};

/// The registers of NEON, with the products `P`.
struct Q<P>(PhantomData<P>);

/// Computes the task.
///
/// # Safety
/// The CPU must support NEON, as every aarch64 CPU does.
#[target_feature(enable = "neon")]
pub(in crate::matmul) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: NEON is part of every aarch64 CPU.
    unsafe { rows::run::<Q<Multiplies>, F>(task) }
}

/// Computes the task.
///
/// # Safety
/// The CPU must support `dotprod`.
#[target_feature(enable = "neon,dotprod")]
pub(in crate::matmul) unsafe fn run_dot<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU feature.
    unsafe { rows::run::<Q<Dots>, F>(task) }
}

/// Computes the task.
///
/// # Safety
/// The CPU must support `dotprod` and `i8mm`.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(in crate::matmul) unsafe fn run_i8mm<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU features.
    unsafe { rows::run::<Q<Matrices>, F>(task) }
}

/// Four bytes, one in each lane.
///
/// # Safety
/// The bytes must be valid.
#[inline(always)]
unsafe fn load_four(bytes: *const u8) -> uint32x4_t {
    // SAFETY: NEON is part of every aarch64 CPU; the caller guarantees the bytes.
    unsafe {
        let bytes = vcreate_u8(u64::from(bytes.cast::<u32>().read_unaligned()));
        vmovl_u16(vget_low_u16(vmovl_u8(bytes)))
    }
}

// SAFETY (of every block below): the caller guarantees the CPU features and the validity of the pointers, as the trait
// requires.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<P: Products> Registers for Q<P> {
    const LANES: usize = 4;
    const SIGNED_BYTES: bool = true;
    const TILE_ROWS: usize = 8;
    type Integers = int32x4_t;
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn call<T: Terms>(work: impl Work) {
        unsafe { P::call::<T>(work) }
    }

    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        unsafe { vdupq_n_s32(0) }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> int32x4_t {
        unsafe { vreinterpretq_s32_u8(vld1q_u8(bytes)) }
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(a: int32x4_t) -> int32x4_t {
        // The shift count is `i32` in these functions and `u32` in the trait, so each count is written out.
        unsafe {
            let words = vreinterpretq_u16_s32(a);
            vreinterpretq_s32_u16(match BITS {
                0 => words,
                1 => vshrq_n_u16::<1>(words),
                2 => vshrq_n_u16::<2>(words),
                3 => vshrq_n_u16::<3>(words),
                4 => vshrq_n_u16::<4>(words),
                5 => vshrq_n_u16::<5>(words),
                6 => vshrq_n_u16::<6>(words),
                _ => vshrq_n_u16::<7>(words),
            })
        }
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(a: int32x4_t) -> int32x4_t {
        unsafe {
            let words = vreinterpretq_u16_s32(a);
            vreinterpretq_s32_u16(match BITS {
                0 => words,
                1 => vshlq_n_u16::<1>(words),
                2 => vshlq_n_u16::<2>(words),
                3 => vshlq_n_u16::<3>(words),
                _ => vshlq_n_u16::<4>(words),
            })
        }
    }

    #[inline(always)]
    unsafe fn and(a: int32x4_t, mask: u8) -> int32x4_t {
        unsafe { of_bytes(a, |a| vandq_u8(a, vdupq_n_u8(mask))) }
    }

    #[inline(always)]
    unsafe fn or_masked(a: int32x4_t, b: int32x4_t, mask: u8) -> int32x4_t {
        unsafe { of_bytes(a, |a| vorrq_u8(a, vandq_u8(vreinterpretq_u8_s32(b), vdupq_n_u8(mask)))) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], codes: int32x4_t) -> int32x4_t {
        unsafe { of_bytes(codes, |codes| vqtbl1q_u8(vld1q_u8(table.as_ptr()), codes)) }
    }

    #[inline(always)]
    unsafe fn shift_lanes(a: int32x4_t, left: i32) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(left))) }
    }

    #[inline(always)]
    unsafe fn and_lanes(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn or_lanes(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vorrq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn gather(table: *const u32, indices: int32x4_t) -> int32x4_t {
        unsafe {
            let indices: [u32; 4] = std::mem::transmute(indices);
            let words = indices.map(|index| *table.add(index as usize));
            vreinterpretq_s32_u32(vld1q_u32(words.as_ptr()))
        }
    }

    #[inline(always)]
    unsafe fn gather_pairs(table: *const u32, indices: int32x4_t) -> [int32x4_t; 2] {
        unsafe {
            let indices: [u32; 4] = std::mem::transmute(indices);
            let pairs = indices.map(|index| *table.add(2 * index as usize).cast::<[u32; 2]>());
            let words = vld2q_u32(pairs.as_ptr().cast());
            [vreinterpretq_s32_u32(words.0), vreinterpretq_s32_u32(words.1)]
        }
    }

    #[inline(always)]
    unsafe fn negate<const QUAD: usize>(a: int32x4_t, signs: int32x4_t) -> int32x4_t {
        unsafe {
            let bits = vreinterpretq_u8_u32(vdupq_n_u32(0x0804_0201 << (QUAD % 2 * 4)));
            // Copies a byte of each lane to all bytes of the lane.
            let copies: [u32; 4] = std::array::from_fn(|lane| 0x0101_0101 * (4 * lane + QUAD / 2) as u32);
            let copies = vreinterpretq_u8_u32(vld1q_u32(copies.as_ptr()));
            let negative = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_s32(signs), copies), bits);
            of_bytes(a, |a| vsubq_u8(veorq_u8(a, negative), negative))
        }
    }

    #[inline(always)]
    unsafe fn add_to_bytes(a: int32x4_t, value: u8) -> int32x4_t {
        unsafe { of_bytes(a, |a| vaddq_u8(a, vdupq_n_u8(value))) }
    }

    #[inline(always)]
    unsafe fn splat_integer(value: i32) -> int32x4_t {
        unsafe { vdupq_n_s32(value) }
    }

    #[inline(always)]
    unsafe fn subtract(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vsubq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_up<const BITS: u32>(a: int32x4_t) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(BITS as i32)) }
    }

    #[inline(always)]
    unsafe fn add_dots<const BITS: usize>(
        dots: &mut [[int32x4_t; 2]],
        codes: &[int32x4_t; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    ) {
        // 8-bit codes become signed bytes; see `SIGNED_BYTES`.
        let signed = |codes| unsafe { of_bytes(codes, |codes| veorq_u8(codes, vdupq_n_u8(128))) };
        unsafe {
            let codes = if BITS == 8 { &codes.map(signed) } else { codes };
            P::add_dots(dots, codes, activations, bits);
        }
    }

    #[inline(always)]
    unsafe fn to_floats(a: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(a) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    unsafe fn load_halves(halves: *const u8) -> float32x4_t {
        upconvert_four(unsafe { vld1_u16(halves.cast()) })
    }

    #[inline(always)]
    unsafe fn load_powers_of_two(exponents: *const u8) -> float32x4_t {
        unsafe {
            let exponents = load_four(exponents);
            let normal = vshlq_n_u32::<23>(vsubq_u32(exponents, vdupq_n_u32(1)));
            // Valid for exponents below 2, and used only for them.
            let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(exponents));
            vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(exponents, vdupq_n_u32(2)), subnormal, normal))
        }
    }

    #[inline(always)]
    unsafe fn load_float8s(bytes: *const u8) -> float32x4_t {
        unsafe {
            let (bytes, low) = (load_four(bytes), vdupq_n_u32(127));
            let not_number = vceqq_u32(bytes, low);
            let shifted = vshlq_n_u32::<20>(vbicq_u32(vandq_u32(bytes, low), not_number));
            vmulq_f32(vreinterpretq_f32_u32(shifted), vdupq_n_f32(FLOAT8_BIAS_DIFFERENCE))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> float32x4_t {
        unsafe {
            let bytes = vcreate_u8(u64::from(bytes.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes)))))
        }
    }

    #[inline(always)]
    unsafe fn multiply(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn load_floats(values: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(values) }
    }

    #[inline(always)]
    unsafe fn store(a: float32x4_t, out: *mut f32) {
        unsafe { vst1q_f32(out, a) }
    }
}

/// Applies a function of bytes.
#[inline(always)]
fn of_bytes(a: int32x4_t, function: impl FnOnce(uint8x16_t) -> uint8x16_t) -> int32x4_t {
    // SAFETY: NEON is part of every aarch64 CPU.
    unsafe { vreinterpretq_s32_u8(function(vreinterpretq_u8_s32(a))) }
}
