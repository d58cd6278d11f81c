//! How operands are unpacked from the cells of a [`Grid`]: for each output one gathered word for a cell of four values, and two
//! adjacent ones for a cell of eight.

use super::packed::{QUAD_BYTES, QUADS};
use super::registers::Registers;
use crate::quant::grid::{Grid, Signs};

/// The operands of run `run` of a block. `packed` are the words of the run, `rest` those of the block after its runs.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn unpack<R: Registers>(
    grid: &Grid,
    offset: u8,
    packed: *const u8,
    rest: *const u8,
    run: usize,
) -> [R::Integers; QUADS] {
    let (low_words, _) = grid.words_of_run();
    // SAFETY: a run has these words; the caller guarantees the CPU features.
    unsafe {
        let low = [R::load(packed), if low_words == 2 { R::load(packed.add(QUAD_BYTES)) } else { R::zero() }];
        let signs = match grid.signs {
            Signs::Negate => R::load(packed.add(low_words * QUAD_BYTES)),
            Signs::Lower => R::zero(),
        };
        let first = run * 32 / grid.cell_len * grid.high_bits;
        let high = match grid.high_bits {
            0 => R::zero(),
            _ => R::shift_lanes(R::load(rest.add(first / 32 * QUAD_BYTES)), -((first % 32) as i32)),
        };
        let words = Words::<R> { low, high, signs };
        if grid.cell_len == 8 {
            let ([a, b], [c, d]) = (words.pair::<0, 1>(grid, offset), words.pair::<2, 3>(grid, offset));
            let ([e, f], [g, h]) = (words.pair::<4, 5>(grid, offset), words.pair::<6, 7>(grid, offset));
            return [a, b, c, d, e, f, g, h];
        }
        [
            words.quad::<0>(grid, offset),
            words.quad::<1>(grid, offset),
            words.quad::<2>(grid, offset),
            words.quad::<3>(grid, offset),
            words.quad::<4>(grid, offset),
            words.quad::<5>(grid, offset),
            words.quad::<6>(grid, offset),
            words.quad::<7>(grid, offset),
        ]
    }
}

/// The words of a run.
struct Words<R: Registers> {
    low: [R::Integers; 2],
    /// The high bits of the cells of the run, from bit 0 on.
    high: R::Integers,
    signs: R::Integers,
}

impl<R: Registers> Words<R> {
    /// The operands of one quad, which is a cell.
    #[inline(always)]
    unsafe fn quad<const QUAD: usize>(&self, grid: &Grid, offset: u8) -> R::Integers {
        let index = self.index(grid, QUAD);
        // SAFETY: an index has as many bits as the number of cells. The caller guarantees the CPU features.
        unsafe { self.with_signs::<QUAD>(R::gather(grid.quads.as_ptr(), index), offset) }
    }

    /// The operands of two quads, which are a cell.
    #[inline(always)]
    unsafe fn pair<const FIRST: usize, const SECOND: usize>(&self, grid: &Grid, offset: u8) -> [R::Integers; 2] {
        let index = self.index(grid, FIRST / 2);
        let table = grid.quads.as_ptr();
        // SAFETY: as above.
        unsafe {
            match grid.signs {
                Signs::Negate => {
                    let [first, second] = R::gather_pairs(table, index);
                    [self.with_signs::<FIRST>(first, offset), self.with_signs::<SECOND>(second, offset)]
                }
                Signs::Lower => {
                    let cell = R::and_lanes(index, R::splat_integer(grid.cells.len() as i32 - 1));
                    let bit = R::shift_lanes(index, -(grid.cells.len().ilog2() as i32));
                    let twos = R::and(R::subtract(R::zero(), bit), 2);
                    R::gather_pairs(table, cell).map(|quad| R::subtract(quad, twos))
                }
            }
        }
    }

    /// The integers of a quad with their signs, plus `offset`.
    #[inline(always)]
    unsafe fn with_signs<const QUAD: usize>(&self, quad: R::Integers, offset: u8) -> R::Integers {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { R::add_to_bytes(R::negate::<QUAD>(quad, self.signs), offset) }
    }

    /// The index of a cell of the run.
    #[inline(always)]
    fn index(&self, grid: &Grid, cell: usize) -> R::Integers {
        let position = (cell * grid.high_bits) as i32;
        let mask = ((1 << grid.high_bits) - 1) << 8;
        // SAFETY: `unpack` guarantees the CPU features.
        unsafe {
            let low = R::shift_lanes(self.low[cell / 4], -((cell % 4 * 8) as i32));
            let low = R::and_lanes(low, R::splat_integer(255));
            match grid.high_bits {
                0 => low,
                _ => R::or_lanes(low, R::and_lanes(R::shift_lanes(self.high, 8 - position), R::splat_integer(mask))),
            }
        }
    }
}
