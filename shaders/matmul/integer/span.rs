//! Products of many rows: a span of a strip is unpacked once, and multiplied with every row from the L1 cache.

use std::ops::Range;

use super::activations::{BLOCK_LEN, PANEL_ROWS, Panel};
use super::packed::{Packing, QUADS, STRIP_ROWS};
use super::products::{Scales, add_products};
use super::registers::Registers;
use super::terms::{Of, Shared, Terms, Work};
use super::tile::{self, Units};
use crate::matmul::Task;
use crate::quant::{BlockFormat, MAX_BLOCK_LEN};

/// The most rows that share a span: the sums of all of them stay in the cache.
pub(super) const MOST_ROWS: usize = 16 * PANEL_ROWS;
/// Runs of 32 columns in a span: whole blocks, few enough that the operands fit the L1 cache together with the activations of a
/// tile.
const SPAN_RUNS: usize = 2 * MAX_BLOCK_LEN / BLOCK_LEN;

/// The sums of the rows, for each output of a strip.
type Sums = [[f32; STRIP_ROWS]];

/// Some unpacked runs of the outputs of a register.
struct Span<R: Registers> {
    operands: [[R::Integers; QUADS]; SPAN_RUNS],
    scales: [Scales<R>; SPAN_RUNS],
    /// The runs of a strip that are unpacked.
    runs: Range<usize>,
    /// The offset of the operands.
    offset: u8,
}

/// Computes up to [`MOST_ROWS`] rows of the task. The first row must start a panel.
///
/// # Safety
/// The CPU must support the instruction set of `R`.
#[inline(always)]
pub(super) unsafe fn run_rows<R: Registers, F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    let (packed, panels) = task.packed();
    // SAFETY: the caller guarantees the CPU features.
    let mut span = unsafe { Span::<R>::zero() };
    let mut sums = [[0.0; STRIP_ROWS]; MOST_ROWS];
    let sums = &mut sums[..rows.len()];
    for first in task.outputs.clone().step_by(STRIP_ROWS) {
        let strip = packed.strip(first);
        let outputs = STRIP_ROWS.min(task.outputs.end - first);
        let blocks = strip.len() / Packing::<F>::BYTES;
        sums.fill([0.0; STRIP_ROWS]);
        for lane in (0..outputs).step_by(R::LANES) {
            // The second half of a strip finds the weights in the cache.
            let ahead = if lane == 0 { task.tuning.prefetch_ahead } else { 0 };
            for first_block in (0..blocks).step_by(SPAN_RUNS / Packing::<F>::RUNS) {
                let span_blocks = first_block..blocks.min(first_block + SPAN_RUNS / Packing::<F>::RUNS);
                let is_last = span_blocks.end == blocks;
                // SAFETY: the caller guarantees the CPU features.
                unsafe { span.unpack::<F>(strip, lane, span_blocks, ahead) };
                for (panel_row, sums) in rows.clone().step_by(PANEL_ROWS).zip(sums.chunks_mut(PANEL_ROWS)) {
                    if is_last {
                        task.prefetch_output(panel_row..panel_row + sums.len(), first);
                    }
                    // SAFETY: as above.
                    unsafe { share::<R, F>(AddPanel { span: &span, panel: panels.panel(panel_row), lane, sums }) };
                }
            }
        }
        task.finish_rows(rows.clone(), first, sums);
    }
}

/// [`Span::add_panel`], for the products of one panel.
struct AddPanel<'a, R: Registers> {
    span: &'a Span<R>,
    panel: Panel<'a>,
    lane: usize,
    sums: &'a mut Sums,
}

impl<R: Registers> Work for AddPanel<'_, R> {
    #[inline(always)]
    unsafe fn run<T: Terms>(self) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { self.span.add_panel::<T>(self.panel, self.lane, self.sums) }
    }
}

/// Runs work with the terms of format `F`, in a function that all formats with these terms share.
///
/// # Safety
/// The CPU must support the instruction set of `R`.
#[inline(always)]
unsafe fn share<R: Registers, F: BlockFormat>(work: impl Work) {
    // SAFETY: the caller guarantees the same.
    unsafe {
        match const { (Of::<F>::WIDE, Of::<F>::HALVES, Of::<F>::OFFSET, Of::<F>::ADDEND) } {
            (false, false, true, false) => R::call::<Shared<false, false, true, false>>(work),
            (false, false, false, true) => R::call::<Shared<false, false, false, true>>(work),
            (false, false, true, true) => R::call::<Shared<false, false, true, true>>(work),
            (false, true, true, false) => R::call::<Shared<false, true, true, false>>(work),
            (false, true, false, true) => R::call::<Shared<false, true, false, true>>(work),
            (true, false, true, false) => R::call::<Shared<true, false, true, false>>(work),
            (true, false, true, true) => R::call::<Shared<true, false, true, true>>(work),
            _ => unreachable!("no format has these terms"),
        }
    }
}

impl<R: Registers> Span<R> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            Span {
                operands: [[R::zero(); QUADS]; SPAN_RUNS],
                scales: std::array::from_fn(|_| Scales::zero()),
                runs: 0..0,
                offset: 0,
            }
        }
    }

    /// Unpacks blocks of a strip, for outputs `lane..lane + LANES`.
    #[inline(always)]
    unsafe fn unpack<F: BlockFormat>(
        &mut self,
        strip: &[u8],
        lane: usize,
        blocks: Range<usize>,
        prefetch_ahead: usize,
    ) {
        let runs = Packing::<F>::RUNS;
        self.runs = blocks.start * runs..blocks.end * runs;
        self.offset = Packing::<F>::LAYOUT.offset;
        let strip = &strip[blocks.start * Packing::<F>::BYTES..blocks.end * Packing::<F>::BYTES];
        let places = self.operands.chunks_exact_mut(runs).zip(self.scales.chunks_exact_mut(runs));
        for (block, (operands, scales)) in strip.chunks_exact(Packing::<F>::BYTES).zip(places) {
            let block = block.as_ptr();
            // SAFETY: the block is complete; the caller guarantees the CPU features.
            unsafe {
                let units = Units::<R>::load::<F>(block, lane);
                for (run, (operands, scales)) in operands.iter_mut().zip(scales).enumerate() {
                    tile::prefetch_beyond::<F>(block, run, prefetch_ahead);
                    *scales = units.scales_of_run::<F>(block, lane, run);
                    *operands = tile::unpack::<R, F>(block, lane, run);
                }
            }
        }
    }

    /// Adds the products of the span and the rows of a panel to their sums.
    #[inline(always)]
    unsafe fn add_panel<T: Terms>(&self, panel: Panel<'_>, lane: usize, sums: &mut Sums) {
        let mut row = 0;
        while row < panel.rows {
            let sums = &mut sums[row..];
            let remaining = panel.rows - row;
            // SAFETY: the caller guarantees the CPU features.
            row += unsafe {
                if R::TILE_ROWS >= 8 && remaining >= 8 {
                    self.add_tile::<T, 8>(panel, row, lane, sums)
                } else if remaining >= 4 {
                    self.add_tile::<T, 4>(panel, row, lane, sums)
                } else if remaining >= 2 {
                    self.add_tile::<T, 2>(panel, row, lane, sums)
                } else {
                    self.add_tile::<T, 1>(panel, row, lane, sums)
                }
            };
        }
    }

    /// Adds the products of the span and rows `first_row..first_row + ROWS` of a panel; returns `ROWS`.
    #[inline(always)]
    unsafe fn add_tile<T: Terms, const ROWS: usize>(
        &self,
        panel: Panel<'_>,
        first_row: usize,
        lane: usize,
        sums: &mut Sums,
    ) -> usize {
        assert!(first_row + ROWS <= panel.rows && sums.len() >= ROWS && lane + R::LANES <= STRIP_ROWS);
        assert!(panel.blocks.len() >= self.runs.end * panel.rows, "the panel has the columns of the span");
        // SAFETY: the assertions above ensure that the panel has the rows of every run, and that the lanes are within the
        // sixteen of the sums. The caller guarantees the CPU features.
        unsafe {
            let mut registers = [R::splat(0.0); ROWS];
            for (register, sums) in registers.iter_mut().zip(&*sums) {
                *register = R::load_floats(sums.as_ptr().add(lane));
            }
            let mut activations = panel.blocks.as_ptr().add(self.runs.start * panel.rows + first_row);
            for run in 0..self.runs.len() {
                let (operands, scales) = (&self.operands[run], &self.scales[run]);
                // This is not a loop over groups of four, because the compiler would keep the sums in memory.
                let (first, second) = registers.split_at_mut(ROWS.min(4));
                add_products::<R, T>(first, operands, scales, activations, panel.bits, self.offset);
                let activations_of_second = activations.wrapping_add(4);
                add_products::<R, T>(second, operands, scales, activations_of_second, panel.bits, self.offset);
                activations = activations.wrapping_add(panel.rows);
            }
            for (register, sums) in registers.into_iter().zip(sums) {
                R::store(register, sums.as_mut_ptr().add(lane));
            }
        }
        ROWS
    }
}
