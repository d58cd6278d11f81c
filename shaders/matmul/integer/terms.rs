//! What the products of unpacked codes depend on, and the loops that formats with equal terms share.
//!
//! A loop that depends on nothing else is compiled for the seven terms that formats have, and not for each of some thirty
//! formats.

use std::marker::PhantomData;

use super::packed::Packing;
use crate::quant::BlockFormat;

/// What a product of unpacked codes depends on.
pub trait Terms {
    /// Whether operands have 8 bits; an offset is then 128. Others have up to 7 bits.
    const WIDE: bool;
    /// Whether each half of 32 columns has its own scale.
    const HALVES: bool;
    /// Whether an offset is subtracted from the operands.
    const OFFSET: bool;
    /// Whether a multiple of the sum of the activations is added.
    const ADDEND: bool;
}

/// The terms of format `F`.
pub(super) struct Of<F>(PhantomData<F>);

impl<F: BlockFormat> Terms for Of<F> {
    const WIDE: bool = Packing::<F>::LAYOUT.operand_bits() == 8;
    const HALVES: bool = Packing::<F>::LAYOUT.group == 16;
    const OFFSET: bool = Packing::<F>::LAYOUT.offset != 0;
    const ADDEND: bool = Packing::<F>::LAYOUT.has_addend();
}

/// Terms that many formats have.
pub(super) struct Shared<const WIDE: bool, const HALVES: bool, const OFFSET: bool, const ADDEND: bool>;

impl<const WIDE: bool, const HALVES: bool, const OFFSET: bool, const ADDEND: bool> Terms
    for Shared<WIDE, HALVES, OFFSET, ADDEND>
{
    const WIDE: bool = WIDE;
    const HALVES: bool = HALVES;
    const OFFSET: bool = OFFSET;
    const ADDEND: bool = ADDEND;
}

/// A loop whose compiled code formats share.
pub trait Work {
    /// Runs the loop.
    ///
    /// # Safety
    /// It must be inlined into a function that is compiled for the instruction set of the work, and the CPU must support
    /// it.
    unsafe fn run<T: Terms>(self);
}
