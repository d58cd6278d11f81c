//! The kernel for AMX, which computes the dot products of sixteen rows with sixteen outputs in two instructions.
//!
//! - this file: the kernel
//! - `pipeline`: the products of unpacked codes
//! - `span`: unpacked codes
//! - [`tiles`]: the instructions, and the check whether they are available
//! - `model`: the instructions in plain Rust, for tests
//!
//! A tile of activations is one plane of the rows of a panel: 32 columns, as stored in [`Block`]s. A tile of codes is
//! 32 columns of a strip: eight quads, as packed, with the offset subtracted, because tiles hold signed bytes. Their
//! product is exact. It is stored to memory and loaded into AVX-512 registers. From there on the operations are those
//! of [`tile`](super::tile), so the bits are equal.
//!
//! A tile instruction takes long, and the hardware does not reorder the uses of a tile register, so runs pass through a
//! [`pipeline`]. Codes are unpacked once for up to [`MOST_PANELS`] panels, with the offset subtracted, and not for every row.

#[cfg(test)]
mod model;
mod pipeline;
mod span;
pub mod tiles;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::activations::{Block, PANEL_ROWS};
use super::avx512::{self, Zmm};
use super::packed::{Packing, STRIP_ROWS};
use super::registers::Registers;
use super::terms::{Of, Shared, Terms, Work};
use crate::matmul::Task;
use crate::quant::BlockFormat;
use pipeline::{AddProducts, Dots, Results, STRIPS, Sums, shapes};
use span::{SPAN_RUNS, Span};
use tiles::{Amx, Tiles};

/// The most panels that share an unpacked strip.
const MOST_PANELS: usize = 16;

/// Computes the task.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, VL) with VNNI, FMA and F16C, and tiles must be supported
/// ([`tiles::is_supported`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function enables the CPU features; the caller guarantees that tiles are supported.
    unsafe { run_with::<Amx, F>(task) }
}

/// Computes the task with the tiles `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_with<T: Tiles, F: BlockFormat>(task: &Task<'_>) {
    if const { F::INTEGERS.is_none() } {
        return;
    }
    let (_, panels) = task.packed();
    let rows = panels.rows();
    let (whole, rest) = (rows - rows % PANEL_ROWS, rows % PANEL_ROWS);
    let panels_in_cache = (task.tuning.rows_in_cache / (PANEL_ROWS * panels.row_bytes()).max(1)).clamp(1, MOST_PANELS);
    // SAFETY: this function enables the CPU features; the caller guarantees that tiles are supported.
    unsafe {
        for first in (0..whole).step_by(panels_in_cache * PANEL_ROWS) {
            multiply::<T, F>(task, first..whole.min(first + panels_in_cache * PANEL_ROWS));
        }
        if rest >= task.tuning.amx_least_rows.max(1) {
            multiply::<T, F>(task, whole..rows);
        } else if rest > 0 {
            avx512::run_rows::<F>(task, whole..rows);
        }
    }
}

/// Computes some rows of the task: up to [`MOST_PANELS`] complete panels, or one incomplete panel.
#[inline(always)]
unsafe fn multiply<T: Tiles, F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    let (_, panels) = task.packed();
    let mut blocks: [&[Block]; MOST_PANELS] = [&[]; MOST_PANELS];
    for (blocks, row) in blocks.iter_mut().zip(rows.clone().step_by(PANEL_ROWS)) {
        *blocks = panels.panel(row).blocks;
    }
    let panels = &blocks[..rows.len().div_ceil(PANEL_ROWS)];
    // SAFETY: the shapes are those that the pipeline uses; the caller guarantees that tiles are supported.
    let tiles = unsafe { T::configure(&shapes(PANEL_ROWS.min(rows.len()))) };
    let (spans, dots) = ([const { Span::NONE }; STRIPS], [const { Dots::ZERO }; 2]);
    let mut workspace = Workspace { tiles, spans, dots };
    let mut sums = [const { [MaybeUninit::<Sums>::uninit(); STRIPS] }; MOST_PANELS];
    let sums = &mut sums[..panels.len()];
    for first in task.outputs.clone().step_by(STRIPS * STRIP_ROWS) {
        let strips = STRIPS.min((task.outputs.end - first).div_ceil(STRIP_ROWS));
        let group = Group { task, rows: rows.clone(), panels, first, strips };
        for sums in sums.as_flattened_mut() {
            sums.write([[0.0; STRIP_ROWS]; PANEL_ROWS]);
        }
        // SAFETY: the sums are initialised above; the caller guarantees the rest.
        unsafe {
            group.multiply::<T, F>(&mut workspace, sums);
            group.finish(sums);
        }
    }
}

/// What is allocated once for all outputs of a task.
struct Workspace<T> {
    tiles: T,
    spans: [Span; STRIPS],
    dots: [Dots; 2],
}

/// Some rows of a task and up to [`STRIPS`] strips of its outputs.
struct Group<'a> {
    task: &'a Task<'a>,
    rows: Range<usize>,
    /// The activations of each panel of the rows.
    panels: &'a [&'a [Block]],
    /// The first output.
    first: usize,
    strips: usize,
}

impl Group<'_> {
    /// Adds the products of all columns to the sums.
    ///
    /// # Safety
    /// The sums must be initialised. The CPU must support AVX-512 with VNNI, and tiles must be supported.
    #[inline(always)]
    unsafe fn multiply<T: Tiles, F: BlockFormat>(
        &self,
        Workspace { tiles, spans, dots }: &mut Workspace<T>,
        sums: &mut [[MaybeUninit<Sums>; STRIPS]],
    ) {
        let (packed, panels) = self.task.packed();
        let strip = |index: usize| packed.strip(self.first + index * STRIP_ROWS);
        let all_blocks = strip(0).len() / Packing::<F>::BYTES;
        for first_block in (0..all_blocks).step_by(SPAN_RUNS / Packing::<F>::RUNS) {
            let blocks = first_block..all_blocks.min(first_block + SPAN_RUNS / Packing::<F>::RUNS);
            for (index, span) in spans[..self.strips].iter_mut().enumerate() {
                // SAFETY: the caller guarantees the CPU features.
                unsafe { span.unpack::<F>(strip(index), blocks.clone(), self.task.tuning.prefetch_ahead) };
            }
            let results = Results { task: self.task, rows: self.rows.clone(), first: self.first };
            let products = AddProducts {
                spans: &spans[..self.strips],
                first_run: first_block * Packing::<F>::RUNS,
                panels: self.panels,
                rows: PANEL_ROWS.min(self.rows.len()),
                bits: panels.bits(),
                results: (blocks.end == all_blocks).then_some(results),
                tiles: &mut *tiles,
                dots: &mut *dots,
                sums: &mut *sums,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { share::<F>(products) };
        }
    }

    /// Writes the results.
    ///
    /// # Safety
    /// The sums must be initialised.
    unsafe fn finish(&self, sums: &[[MaybeUninit<Sums>; STRIPS]]) {
        for (panel_row, sums) in self.rows.clone().step_by(PANEL_ROWS).zip(sums) {
            for (strip, sums) in sums[..self.strips].iter().enumerate() {
                let first = self.first + strip * STRIP_ROWS;
                let outputs = STRIP_ROWS.min(self.task.outputs.end - first);
                // SAFETY: the caller guarantees the same.
                let sums = unsafe { sums.assume_init_ref() };
                for (row, sums) in (panel_row..self.rows.end).zip(sums) {
                    self.task.finish(row, first, &sums[..outputs]);
                }
            }
        }
    }
}

/// Runs work with the terms of format `F`, in a function that formats share. The offset is already subtracted from the codes, so
/// the terms of a product are only those of its scales.
///
/// # Safety
/// The CPU must support AVX-512.
#[inline(always)]
unsafe fn share<F: BlockFormat>(work: impl Work) {
    // SAFETY: the caller guarantees the same.
    unsafe {
        match const { (Of::<F>::HALVES, Of::<F>::ADDEND) } {
            (false, false) => Zmm::call::<Shared<false, false, false, false>>(work),
            (false, true) => Zmm::call::<Shared<false, false, false, true>>(work),
            (true, false) => Zmm::call::<Shared<false, true, false, false>>(work),
            (true, true) => Zmm::call::<Shared<false, true, false, true>>(work),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
