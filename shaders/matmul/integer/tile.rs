//! The loop that multiplies a few rows with a strip of outputs, for every format and instruction set: the codes of 32 columns
//! are unpacked into registers and multiplied with each row of a tile of up to eight rows.

use super::activations::{PANEL_ROWS, Panel};
use super::grid;
use super::packed::{Packing, QUAD_BYTES, QUADS, STRIP_ROWS, planes};
use super::products::{Scales, add_products};
use super::registers::Registers;
use super::terms::Of;
use crate::prefetch::prefetch;
use crate::quant::BlockFormat;
use crate::quant::integer::{Scale, Unit};

/// Computes the results of all rows of a panel for outputs `lane..lane + LANES` of a strip.
///
/// # Safety
/// The CPU must support the instruction set of `R`.
#[inline(always)]
pub(super) unsafe fn multiply<R: Registers, F: BlockFormat>(
    strip: &[u8],
    lane: usize,
    panel: Panel<'_>,
    prefetch_ahead: usize,
    results: &mut [[f32; STRIP_ROWS]; PANEL_ROWS],
) {
    let mut row = 0;
    while row < panel.rows {
        let results = &mut results[row..];
        let remaining = panel.rows - row;
        // The second half of a strip and its later rows find the weights in the cache.
        let ahead = if row == 0 && lane == 0 { prefetch_ahead } else { 0 };
        // SAFETY: the caller guarantees the CPU features.
        row += unsafe {
            if R::TILE_ROWS >= 8 && remaining >= 8 {
                tile::<R, F, 8>(strip, lane, panel, row, ahead, results)
            } else if remaining >= 4 {
                tile::<R, F, 4>(strip, lane, panel, row, ahead, results)
            } else if remaining >= 2 {
                tile::<R, F, 2>(strip, lane, panel, row, ahead, results)
            } else {
                tile::<R, F, 1>(strip, lane, panel, row, ahead, results)
            }
        };
    }
}

/// Computes the results of rows `first_row..first_row + ROWS` of a panel; returns `ROWS`.
#[inline(always)]
unsafe fn tile<R: Registers, F: BlockFormat, const ROWS: usize>(
    strip: &[u8],
    lane: usize,
    panel: Panel<'_>,
    first_row: usize,
    prefetch_ahead: usize,
    results: &mut [[f32; STRIP_ROWS]],
) -> usize {
    let blocks = strip.len() / Packing::<F>::BYTES;
    assert!(first_row + ROWS <= panel.rows && results.len() >= ROWS && lane + R::LANES <= STRIP_ROWS);
    assert_eq!(panel.blocks.len(), blocks * Packing::<F>::RUNS * panel.rows, "columns of weight and activations");
    // SAFETY: the assertions above ensure that the strip has `blocks` packed blocks, that the panel has rows of as many
    // columns, and that the lanes are within the sixteen of the strip. The caller guarantees the CPU features.
    unsafe {
        let offset = Packing::<F>::LAYOUT.offset;
        let mut sums = [R::splat(0.0); ROWS];
        let mut activations = panel.blocks.as_ptr().add(first_row);
        for block in 0..blocks {
            let block = strip.as_ptr().add(block * Packing::<F>::BYTES);
            let units = Units::<R>::load::<F>(block, lane);
            for run in 0..Packing::<F>::RUNS {
                prefetch_beyond::<F>(block, run, prefetch_ahead);
                let scales = units.scales_of_run::<F>(block, lane, run);
                let codes = unpack::<R, F>(block, lane, run);
                // This is not a loop over groups of four, because the compiler would keep the sums in memory.
                let (first, second) = sums.split_at_mut(ROWS.min(4));
                add_products::<R, Of<F>>(first, &codes, &scales, activations, panel.bits, offset);
                add_products::<R, Of<F>>(second, &codes, &scales, activations.wrapping_add(4), panel.bits, offset);
                activations = activations.wrapping_add(panel.rows);
            }
        }
        for (results, sum) in results.iter_mut().zip(sums) {
            R::store(sum, results.as_mut_ptr().add(lane));
        }
    }
    ROWS
}

/// Prefetches a run's share of the packed block `ahead` bytes after this one; nothing with 0. A prefetch past the end
/// has no effect.
///
/// The cache lines of a block are spread over its runs, because a CPU tracks only some dozen loads from memory at once: a
/// Zen 4 stops when all of a block are requested together.
#[inline(always)]
pub(super) fn prefetch_beyond<F: BlockFormat>(block: *const u8, run: usize, ahead: usize) {
    const CACHE_LINE: usize = 64;
    if ahead == 0 {
        return;
    }
    let lines = Packing::<F>::BYTES.div_ceil(CACHE_LINE);
    for line in run * lines / Packing::<F>::RUNS..(run + 1) * lines / Packing::<F>::RUNS {
        prefetch(block.wrapping_add(ahead.wrapping_add(line * CACHE_LINE)));
    }
}

/// The units of the scales and minima of a block. With zero points the minimum is that of all its values.
pub(super) struct Units<R: Registers> {
    scale: R::Floats,
    minimum: R::Floats,
}

impl<R: Registers> Units<R> {
    #[inline(always)]
    pub(super) unsafe fn load<F: BlockFormat>(block: *const u8, lane: usize) -> Self {
        // SAFETY: the block starts with the units; the caller guarantees the CPU features.
        unsafe {
            let scale = match Packing::<F>::LAYOUT.unit {
                Unit::Half => R::load_halves(block.add(2 * lane)),
                Unit::PowerOfTwo => R::load_powers_of_two(block.add(lane)),
            };
            let scale = match Packing::<F>::LAYOUT.unit_shift {
                0 => scale,
                _ => R::multiply(scale, R::splat(Packing::<F>::LAYOUT.unit_factor())),
            };
            let minimum = if Packing::<F>::LAYOUT.minimum {
                R::load_halves(block.add(Packing::<F>::UNIT_BYTES + 2 * lane))
            } else if Packing::<F>::LAYOUT.zero_points {
                // Exact: a float16 times a byte.
                let zero_points = R::load_bytes(block.add(Packing::<F>::ZERO_POINTS + lane));
                R::multiply(R::multiply(scale, R::splat(-1.0)), zero_points)
            } else {
                scale
            };
            Units { scale, minimum }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn scales_of_run<F: BlockFormat>(&self, block: *const u8, lane: usize, run: usize) -> Scales<R> {
        let layout = Packing::<F>::LAYOUT;
        let mut scales = Scales { scales: [self.scale; 2], minima: [self.minimum; 2] };
        if layout.group_scales {
            let groups = 32 / layout.group;
            for group in 0..groups {
                // SAFETY: the scales of every group of the block are at this offset; the caller guarantees the CPU
                // features.
                unsafe {
                    let bytes =
                        block.add(Packing::<F>::SCALES + (run * groups + group) * Packing::<F>::SCALE_BYTES + lane);
                    let scale = match layout.scale {
                        Scale::Integer => R::load_bytes(bytes),
                        Scale::Float8 => R::load_float8s(bytes),
                    };
                    scales.scales[group] = R::multiply(self.scale, scale);
                    if layout.minimum {
                        scales.minima[group] = R::multiply(self.minimum, R::load_bytes(bytes.add(STRIP_ROWS)));
                    }
                }
            }
        }
        scales
    }
}

/// The operands of run `run` of a packed block, one register for each quad.
#[inline(always)]
pub(super) unsafe fn unpack<R: Registers, F: BlockFormat>(
    block: *const u8,
    lane: usize,
    run: usize,
) -> [R::Integers; QUADS] {
    // This is not a loop, because the index of a quad must be a constant.
    // SAFETY: the run is in the block; the caller guarantees the same.
    unsafe {
        let packed = block.add(Packing::<F>::CODES + run * Packing::<F>::RUN_BYTES + 4 * lane);
        if let Some(grid) = &const { Packing::<F>::LAYOUT.grid } {
            let rest = block.add(Packing::<F>::REST + 4 * lane);
            return grid::unpack::<R>(grid, Packing::<F>::LAYOUT.offset, packed, rest, run);
        }
        [
            unpack_quad::<R, F, 0>(packed),
            unpack_quad::<R, F, 1>(packed),
            unpack_quad::<R, F, 2>(packed),
            unpack_quad::<R, F, 3>(packed),
            unpack_quad::<R, F, 4>(packed),
            unpack_quad::<R, F, 5>(packed),
            unpack_quad::<R, F, 6>(packed),
            unpack_quad::<R, F, 7>(packed),
        ]
    }
}

/// The operands of one quad: its codes, or their entries in the codebook of the format.
#[inline(always)]
unsafe fn unpack_quad<R: Registers, F: BlockFormat, const QUAD: usize>(packed: *const u8) -> R::Integers {
    // SAFETY: the caller guarantees the same.
    unsafe {
        let codes = unpack_codes::<R, F, QUAD>(packed);
        match &const { Packing::<F>::OPERANDS } {
            Some(operands) => R::look_up(operands, codes),
            None => codes,
        }
    }
}

/// The codes of one quad, assembled from the planes.
#[inline(always)]
unsafe fn unpack_codes<R: Registers, F: BlockFormat, const QUAD: usize>(packed: *const u8) -> R::Integers {
    let [(low_width, _), (high_width, high_start)] = const { planes(Packing::<F>::LAYOUT.bits) };
    // SAFETY: the planes are consecutive; the caller guarantees the CPU features.
    unsafe {
        let register = R::load(packed.add(QUAD % low_width * QUAD_BYTES));
        let codes = low_bits::<R>(register, low_width, QUAD / low_width * low_width);
        if high_width == 0 {
            return codes;
        }
        let register = R::load(packed.add((low_width + QUAD % high_width) * QUAD_BYTES));
        add_high_bits::<R>(codes, register, high_width, QUAD / high_width * high_width, high_start)
    }
}

/// The bits `from..from + width` of each byte. The mask removes bits that the shift moves in from a neighbouring byte.
#[inline(always)]
unsafe fn low_bits<R: Registers>(register: R::Integers, width: usize, from: usize) -> R::Integers {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let shifted = match from {
            0 => register,
            1 => R::shift_right::<1>(register),
            2 => R::shift_right::<2>(register),
            3 => R::shift_right::<3>(register),
            4 => R::shift_right::<4>(register),
            5 => R::shift_right::<5>(register),
            6 => R::shift_right::<6>(register),
            _ => R::shift_right::<7>(register),
        };
        if width == 8 { shifted } else { R::and(shifted, u8::MAX >> (8 - width)) }
    }
}

/// `codes` combined with the bits `from..from + width` of each byte of `register`, moved to bit `to`.
#[inline(always)]
unsafe fn add_high_bits<R: Registers>(
    codes: R::Integers,
    register: R::Integers,
    width: usize,
    from: usize,
    to: usize,
) -> R::Integers {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let shifted = match to as isize - from as isize {
            4 => R::shift_left::<4>(register),
            3 => R::shift_left::<3>(register),
            2 => R::shift_left::<2>(register),
            1 => R::shift_left::<1>(register),
            0 => register,
            -1 => R::shift_right::<1>(register),
            -2 => R::shift_right::<2>(register),
            -3 => R::shift_right::<3>(register),
            -4 => R::shift_right::<4>(register),
            _ => R::shift_right::<5>(register),
        };
        R::or_masked(codes, shifted, (u8::MAX >> (8 - width)) << to)
    }
}
