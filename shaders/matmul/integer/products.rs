//! Products of unpacked codes and activations, scaled and added to results.

use super::activations::Block;
use super::packed::QUADS;
use super::registers::Registers;
use super::terms::Terms;
use crate::cpu::ActivationBits;

/// The scales and minima of 32 columns. With groups of 32 only the first of each is used.
pub(super) struct Scales<R: Registers> {
    pub(super) scales: [R::Floats; 2],
    pub(super) minima: [R::Floats; 2],
}

impl<R: Registers> Scales<R> {
    #[inline(always)]
    pub(super) unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees the CPU features.
        let zeros = unsafe { [R::splat(0.0); 2] };
        Scales { scales: zeros, minima: zeros }
    }
}

/// Adds the products of 32 columns to the sums of up to four rows, whose activations are consecutive.
///
/// # Safety
/// There must be activations for each sum. The CPU must support the instruction set of `R`.
#[inline(always)]
pub(super) unsafe fn add_products<R: Registers, T: Terms>(
    sums: &mut [R::Floats],
    codes: &[R::Integers; QUADS],
    scales: &Scales<R>,
    activations: *const Block,
    bits: ActivationBits,
    offset: u8,
) {
    // SAFETY: the caller guarantees the same.
    unsafe {
        let mut dots = [[R::zero(); 2]; 4];
        if T::WIDE {
            R::add_dots::<8>(&mut dots[..sums.len()], codes, activations, bits);
        } else {
            R::add_dots::<7>(&mut dots[..sums.len()], codes, activations, bits);
        }
        for (row, (sum, dots)) in sums.iter_mut().zip(dots).enumerate() {
            let activations = &*activations.add(row);
            let product = product::<R, T>(dots, scales, activations, offset);
            *sum = R::multiply_add(product, R::splat(activations.scale), *sum);
        }
    }
}

/// The contribution of 32 columns to a result, without the scale of the activations. The arguments are the dot products
/// of both halves with codes from which `offset` is not subtracted yet.
///
/// # Safety
/// The CPU must support the instruction set of `R`.
#[inline(always)]
pub(super) unsafe fn product<R: Registers, T: Terms>(
    [first, second]: [R::Integers; 2],
    Scales { scales, minima }: &Scales<R>,
    activations: &Block,
    offset: u8,
) -> R::Floats {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        if !T::HALVES {
            let sum = (activations.integer_sum(), R::splat(activations.sum));
            return scaled::<R, T>(R::add(first, second), sum, offset, scales[0], minima[0], None);
        }
        let [first_sum, second_sum] = activations.half_sums.map(|sum| (sum, R::to_floats(R::splat_integer(sum))));
        let first = scaled::<R, T>(first, first_sum, offset, scales[0], minima[0], None);
        scaled::<R, T>(second, second_sum, offset, scales[1], minima[1], Some(first))
    }
}

/// `scale * (dot - offset * sum) + minimum * sum + addend`. The sum is given as an integer and as floats.
#[inline(always)]
unsafe fn scaled<R: Registers, T: Terms>(
    mut dot: R::Integers,
    (sum, sums): (i32, R::Floats),
    offset: u8,
    scale: R::Floats,
    minimum: R::Floats,
    addend: Option<R::Floats>,
) -> R::Floats {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        // Registers of signed bytes have subtracted the offset of wide operands already.
        if T::OFFSET && !(T::WIDE && R::SIGNED_BYTES) {
            dot = R::subtract(dot, R::splat_integer(i32::from(offset) * sum));
        }
        let product = match addend {
            Some(addend) => R::multiply_add(scale, R::to_floats(dot), addend),
            None => R::multiply(scale, R::to_floats(dot)),
        };
        if T::ADDEND { R::multiply_add(minimum, sums, product) } else { product }
    }
}
