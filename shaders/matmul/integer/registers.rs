//! What the tile loop asks of an instruction set.

/// One register's worth of outputs: integers of four bytes, or float32, a lane for each.
///
/// Every function is inlined into a function that is compiled for the instruction set, which is what each asks of its
/// caller; pointers must be good for what is read or written, and need no alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Registers {
    /// Outputs in a register; divides sixteen.
    const LANES: usize;
    /// Whether codes of 8 bits are taken less 128, as signed bytes, by [`Registers::add_dot`].
    const SIGNED_BYTES: bool;
    /// Most rows in a tile: as many as there are registers for.
    const TILE_ROWS: usize;
    /// Integers.
    type Integers: Copy;
    /// Float32.
    type Floats: Copy;

    /// Zeros.
    unsafe fn zero() -> Self::Integers;
    /// `4 * LANES` bytes.
    unsafe fn load(bytes: *const u8) -> Self::Integers;
    /// Each 16 bits moved down.
    unsafe fn shift_right<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// Each 16 bits moved up.
    unsafe fn shift_left<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// `a & mask`, each byte.
    unsafe fn and(a: Self::Integers, mask: u8) -> Self::Integers;
    /// `a | (b & mask)`, each byte.
    unsafe fn or_masked(a: Self::Integers, b: Self::Integers, mask: u8) -> Self::Integers;
    /// What `table` has at each byte, which is below 16.
    unsafe fn look_up(table: &[u8; 16], codes: Self::Integers) -> Self::Integers;
    /// One value in every lane.
    unsafe fn splat_integer(value: i32) -> Self::Integers;
    /// The difference of two.
    unsafe fn subtract(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The sum of two.
    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a * 2^BITS`, each lane.
    unsafe fn scale_up<const BITS: u32>(a: Self::Integers) -> Self::Integers;
    /// In each lane: the four operands, of at most `BITS` bits, times the four values, added to `sums`. Exact.
    unsafe fn add_dot<const BITS: usize>(
        sums: Self::Integers,
        codes: Self::Integers,
        values: *const i8,
    ) -> Self::Integers;
    /// As float32, to the nearest.
    unsafe fn to_floats(a: Self::Integers) -> Self::Floats;

    /// One value in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// `LANES` halves.
    unsafe fn load_halves(halves: *const u8) -> Self::Floats;
    /// `LANES` powers of two, a byte `e` for `2^(e - 128)`: see [`power_of_two`](crate::quant::integer::power_of_two).
    unsafe fn load_powers_of_two(exponents: *const u8) -> Self::Floats;
    /// `LANES` signed bytes.
    unsafe fn load_bytes(bytes: *const u8) -> Self::Floats;
    /// `a * b`.
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Writes `LANES` values.
    unsafe fn store(a: Self::Floats, out: *mut f32);
}
