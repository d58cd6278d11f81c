//! The operations that the tile loop requires of an instruction set.

use super::activations::Block;
use super::packed::QUADS;
use super::terms::{Terms, Work};
use crate::cpu::ActivationBits;

/// A register with one lane per output, of 32-bit integers or float32.
///
/// Safety: every function but `call` must be inlined into a function that is compiled for the instruction set, and the CPU must
/// support it. Pointers must be valid for the bytes that are read or written; they need no alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Registers {
    /// Outputs in a register. It must divide sixteen.
    const LANES: usize;
    /// Whether [`Registers::add_dots`] subtracts 128 from 8-bit codes and multiplies signed bytes.
    const SIGNED_BYTES: bool;
    /// The most rows of a tile, limited by the number of registers.
    const TILE_ROWS: usize;
    /// Integers.
    type Integers: Copy;
    /// Float32.
    type Floats: Copy;

    /// Runs the work in a function of its own, which is compiled for the instruction set.
    unsafe fn call<T: Terms>(work: impl Work);

    /// Zeros.
    unsafe fn zero() -> Self::Integers;
    /// Loads `4 * LANES` bytes.
    unsafe fn load(bytes: *const u8) -> Self::Integers;
    /// Shifts each 16 bits right.
    unsafe fn shift_right<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// Shifts each 16 bits left.
    unsafe fn shift_left<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// `a & mask` for each byte.
    unsafe fn and(a: Self::Integers, mask: u8) -> Self::Integers;
    /// `a | (b & mask)` for each byte.
    unsafe fn or_masked(a: Self::Integers, b: Self::Integers, mask: u8) -> Self::Integers;
    /// Looks up each byte, which must be below 16, in `table`.
    unsafe fn look_up(table: &[u8; 16], codes: Self::Integers) -> Self::Integers;
    /// Shifts each lane by `left` bits to the left, or by `-left` bits to the right.
    unsafe fn shift_lanes(a: Self::Integers, left: i32) -> Self::Integers;
    /// `a & b` for each lane.
    unsafe fn and_lanes(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a | b` for each lane.
    unsafe fn or_lanes(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The word `table[index]` for the index in each lane.
    unsafe fn gather(table: *const u32, indices: Self::Integers) -> Self::Integers;
    /// The words `table[2 * index]` and `table[2 * index + 1]` for the index in each lane.
    unsafe fn gather_pairs(table: *const u32, indices: Self::Integers) -> [Self::Integers; 2];
    /// Negates byte `i` of each lane if bit `4 QUAD + i` of the lane of `signs` is 1.
    unsafe fn negate<const QUAD: usize>(a: Self::Integers, signs: Self::Integers) -> Self::Integers;
    /// `a + value` for each byte.
    unsafe fn add_to_bytes(a: Self::Integers, value: u8) -> Self::Integers;
    /// One value in every lane.
    unsafe fn splat_integer(value: i32) -> Self::Integers;
    /// `a - b` for each lane.
    unsafe fn subtract(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a + b` for each lane.
    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a * 2^BITS` for each lane.
    unsafe fn scale_up<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// Adds to `dots` the dot products of 32 columns, for each of up to four rows: those of both halves of the columns.
    /// Codes have at most `BITS` bits. The activations of the rows are consecutive, with these `bits`. `dots` must be
    /// zeros. The results are exact.
    unsafe fn add_dots<const BITS: usize>(
        dots: &mut [[Self::Integers; 2]],
        codes: &[Self::Integers; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    );
    /// Converts to float32, rounding to nearest.
    unsafe fn to_floats(a: Self::Integers) -> Self::Floats;

    /// One value in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// Loads `LANES` float16 values.
    unsafe fn load_halves(halves: *const u8) -> Self::Floats;
    /// Loads `LANES` powers of two; a byte `e` represents `2^(e - 128)`, see
    /// [`power_of_two`](crate::quant::integer::power_of_two).
    unsafe fn load_powers_of_two(exponents: *const u8) -> Self::Floats;
    /// Loads `LANES` bytes that represent numbers as [`float8`](crate::quant::integer::float8) states.
    unsafe fn load_float8s(bytes: *const u8) -> Self::Floats;
    /// Loads `LANES` signed bytes.
    unsafe fn load_bytes(bytes: *const u8) -> Self::Floats;
    /// `a * b`.
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Loads `LANES` values.
    unsafe fn load_floats(values: *const f32) -> Self::Floats;
    /// Stores `LANES` values.
    unsafe fn store(a: Self::Floats, out: *mut f32);
}
