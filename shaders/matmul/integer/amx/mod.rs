//! The kernel for AMX, which computes the dot products of sixteen rows with sixteen outputs in two instructions.
//!
//! - this file: the kernel
//! - [`tiles`]: the instructions, and the check whether they are available
//! - `model`: the instructions in plain Rust, for tests
//!
//! A tile of activations is one plane of the rows of a panel: 32 columns, as stored in [`Block`]s. A tile of codes is
//! 32 columns of a strip: eight quads, as packed, with the offset subtracted, because tiles hold signed bytes. Their
//! product is exact. It is stored to memory and loaded into AVX-512 registers. From there on the operations are those
//! of [`tile`], so the bits are equal.
//!
//! The table is the cost of 16 rows, 16 outputs and 32 columns. Instructions are counted in the compiled loops. Cycles
//! are estimated, not measured, from these assumptions: a tile product takes 16 cycles for any number of columns, a
//! tile load 8 and a tile store 16, and a core executes two operations on registers of 64 bytes per cycle. VNNI needs
//! 256 such operations for its dot products alone.
//!
//! | group | minimum | instructions | cycles: products | tile loads, stores | scaling | lower bound | with VNNI |
//! |---|---|---|---|---|---|---|---|
//! | 32 | no  | 120 | 32 | 20, 32 | 40  | 40  | 190 |
//! | 32 | yes | 180 | 32 | 20, 32 | 64  | 64  | 200 |
//! | 16 | no  | 190 | 64 | 24, 64 | 72  | 72  | 210 |
//! | 16 | yes | 320 | 64 | 24, 64 | 120 | 120 | 230 |
//!
//! Scaling is the most expensive step. So the offset is subtracted when codes are unpacked, once for up to
//! [`MOST_PANELS`] panels and not for every row. And the products of one run are computed while those of the previous
//! run are scaled.

#[cfg(test)]
mod model;
pub mod tiles;

use std::arch::x86_64::{
    __m512, __m512i, _mm512_loadu_ps, _mm512_set1_epi8, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_sub_epi8,
};
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;

use super::activations::{BLOCK_LEN, Block, LOW_BITS, PANEL_ROWS};
use super::avx512::{self, Zmm};
use super::packed::{Packing, QUAD_BYTES, QUADS, STRIP_ROWS};
use super::products::{self, Scales};
use super::registers::Registers;
use super::terms::{Of, Shared, Terms, Work};
use super::tile::{self, Units};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::quant::{BlockFormat, MAX_BLOCK_LEN};
use tiles::{Amx, ROW_BYTES, Shapes, Tiles};

/// The most panels that share an unpacked strip.
const MOST_PANELS: usize = 16;
/// Strips that are multiplied with activations while these are in the L1 cache.
const STRIPS: usize = 2;
/// Runs of 32 columns that are unpacked at a time: the longest block.
const SPAN_RUNS: usize = MAX_BLOCK_LEN / BLOCK_LEN;

/// The tile registers: the planes of the activations, the codes (of each group if a run has two), and the sums for each
/// group and plane.
const HIGH: usize = 0;
const LOW: usize = 1;
const CODES: [usize; 2] = [2, 3];
const HIGH_SUMS: [usize; 2] = [4, 5];
const LOW_SUMS: [usize; 2] = [6, 7];

/// The shapes of the registers for `rows` rows.
const fn shapes(rows: usize) -> Shapes {
    let (activations, codes, sums) = ((rows, BLOCK_LEN), (QUADS, QUAD_BYTES), (rows, ROW_BYTES));
    Shapes::new([activations, activations, codes, codes, sums, sums, sums, sums])
}

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

/// The results of a panel and a strip.
type Sums = [[f32; STRIP_ROWS]; PANEL_ROWS];

/// Computes some rows of the task: up to [`MOST_PANELS`] complete panels, or one incomplete panel.
#[inline(always)]
unsafe fn multiply<T: Tiles, F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    let (packed, panels) = task.packed();
    // SAFETY: the shapes are those that `multiply_run` uses; the caller guarantees that tiles are supported.
    let mut tiles = unsafe { T::configure(&shapes(PANEL_ROWS.min(rows.len()))) };
    let mut spans = [const { Span::NONE }; STRIPS];
    let mut dots = [const { Dots([[[[0; STRIP_ROWS]; PANEL_ROWS]; 2]; 2]) }; 2];
    let mut sums = [const { [MaybeUninit::<Sums>::uninit(); STRIPS] }; MOST_PANELS];
    for first in task.outputs.clone().step_by(STRIPS * STRIP_ROWS) {
        let strips = STRIPS.min((task.outputs.end - first).div_ceil(STRIP_ROWS));
        let panel_rows = || rows.clone().step_by(PANEL_ROWS);
        let sums = &mut sums[..panel_rows().len()];
        for sums in sums.as_flattened_mut() {
            sums.write([[0.0; STRIP_ROWS]; PANEL_ROWS]);
        }
        let blocks = packed.strip(first).len() / Packing::<F>::BYTES;
        for first_block in (0..blocks).step_by(SPAN_RUNS / Packing::<F>::RUNS) {
            let blocks = first_block..blocks.min(first_block + SPAN_RUNS / Packing::<F>::RUNS);
            for (index, span) in spans[..strips].iter_mut().enumerate() {
                let strip = packed.strip(first + index * STRIP_ROWS);
                // SAFETY: the caller guarantees the CPU features.
                unsafe { span.unpack::<F>(strip, blocks.clone(), task.tuning.prefetch_ahead) };
            }
            for (row, sums) in panel_rows().zip(&mut *sums) {
                let panel = panels.panel(row);
                let activations = &panel.blocks[blocks.start * Packing::<F>::RUNS * panel.rows..];
                for (span, sums) in spans[..strips].iter().zip(sums) {
                    // SAFETY: the sums are initialised above; the caller guarantees the rest.
                    unsafe {
                        let sums = sums.assume_init_mut();
                        let activations = (activations, panel.rows, panel.bits);
                        share::<F>(AddProducts { span, tiles: &mut tiles, activations, dots: &mut dots, sums });
                    }
                }
            }
        }
        for (row, sums) in panel_rows().zip(&*sums) {
            for (strip, sums) in sums[..strips].iter().enumerate() {
                // SAFETY: as above.
                finish(task, row, first + strip * STRIP_ROWS, unsafe { sums.assume_init_ref() });
            }
        }
    }
}

/// Writes the results of the panel that starts at row `row` and the strip that starts at output `first`.
fn finish(task: &Task<'_>, row: usize, first: usize, sums: &Sums) {
    let (_, panels) = task.packed();
    let outputs = STRIP_ROWS.min(task.outputs.end - first);
    for (index, sums) in sums[..panels.panel(row).rows].iter().enumerate() {
        task.finish(row + index, first, &sums[..outputs]);
    }
}

/// Some unpacked runs of a strip.
#[repr(C, align(64))]
struct Span {
    /// The quads of each run. If a run has two groups, zeros are stored between them: a tile of eight quads that starts
    /// at the first quad contains only the first group, and one that starts at the fifth quad contains only the second.
    codes: [[[u8; QUAD_BYTES]; QUADS + QUADS / 2]; SPAN_RUNS],
    scales: [MaybeUninit<Scales<Zmm>>; SPAN_RUNS],
    runs: usize,
}

/// The dot products of a run, for each group and for the high and the low plane of the activations.
#[repr(C, align(64))]
struct Dots([[[[i32; STRIP_ROWS]; PANEL_ROWS]; 2]; 2]);

impl Dots {
    /// The dot products of a group and a row, with both planes combined. With 8 bits the low plane has none.
    #[inline(always)]
    unsafe fn of<const GROUP: usize>(&self, row: usize, bits: ActivationBits) -> __m512i {
        let [high, low] = &self.0[GROUP];
        // SAFETY: a row has the size of a register; the caller guarantees the CPU features.
        unsafe {
            let high = Zmm::load(high[row].as_ptr().cast());
            if bits == ActivationBits::Eight {
                return high;
            }
            Zmm::add(Zmm::scale_up::<LOW_BITS>(high), Zmm::load(low[row].as_ptr().cast()))
        }
    }
}

/// [`Span::add_products`], for one panel.
struct AddProducts<'a, T: Tiles> {
    span: &'a Span,
    tiles: &'a mut T,
    activations: (&'a [Block], usize, ActivationBits),
    dots: &'a mut [Dots; 2],
    sums: &'a mut Sums,
}

impl<T: Tiles> Work for AddProducts<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Terms>(self) {
        // SAFETY: the caller guarantees the same.
        unsafe {
            if self.activations.1 == PANEL_ROWS {
                self.span.add_products::<T, K, true>(self.tiles, self.activations, self.dots, self.sums);
            } else {
                self.span.add_products::<T, K, false>(self.tiles, self.activations, self.dots, self.sums);
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

impl Span {
    const NONE: Span = Span {
        codes: [[[0; QUAD_BYTES]; QUADS + QUADS / 2]; SPAN_RUNS],
        scales: [const { MaybeUninit::uninit() }; SPAN_RUNS],
        runs: 0,
    };

    /// Unpacks blocks of a strip.
    #[inline(always)]
    unsafe fn unpack<F: BlockFormat>(&mut self, strip: &[u8], blocks: Range<usize>, prefetch_ahead: usize) {
        let layout = Packing::<F>::LAYOUT;
        self.runs = blocks.len() * Packing::<F>::RUNS;
        let strip = &strip[blocks.start * Packing::<F>::BYTES..blocks.end * Packing::<F>::BYTES];
        for (index, block) in strip.chunks_exact(Packing::<F>::BYTES).enumerate() {
            let block = block.as_ptr();
            // SAFETY: the block is complete; the caller guarantees the CPU features.
            unsafe {
                let units = Units::<Zmm>::load::<F>(block, 0);
                for run in 0..Packing::<F>::RUNS {
                    tile::prefetch_beyond::<F>(block, run, prefetch_ahead);
                    let quads = &mut self.codes[index * Packing::<F>::RUNS + run];
                    self.scales[index * Packing::<F>::RUNS + run].write(units.scales_of_run::<F>(block, 0, run));
                    for (quad, codes) in tile::unpack::<Zmm, F>(block, 0, run).into_iter().enumerate() {
                        let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(layout.offset as i8));
                        let index = if layout.group == 16 && quad >= QUADS / 2 { quad + QUADS / 2 } else { quad };
                        _mm512_storeu_si512(quads[index].as_mut_ptr().cast(), codes);
                    }
                }
            }
        }
    }

    /// Adds the products of the span and the rows of a panel. The activations must start at the first run of the span.
    #[inline(always)]
    unsafe fn add_products<T: Tiles, K: Terms, const WHOLE: bool>(
        &self,
        tiles: &mut T,
        (activations, rows, bits): (&[Block], usize, ActivationBits),
        dots: &mut [Dots; 2],
        sums: &mut Sums,
    ) {
        let rows = if WHOLE { PANEL_ROWS } else { rows };
        assert!((1..=PANEL_ROWS).contains(&rows) && self.runs <= SPAN_RUNS && activations.len() >= self.runs * rows);
        // SAFETY: the assertion above ensures that the activations contain the rows of every run, and each run is
        // multiplied before it is scaled. The caller guarantees the CPU features.
        unsafe {
            let mut registers = [_mm512_setzero_ps(); PANEL_ROWS];
            for (row, register) in registers.iter_mut().enumerate() {
                *register = _mm512_loadu_ps(sums[row].as_ptr());
            }
            multiply_run::<T, K>(tiles, &self.codes[0], activations.as_ptr(), bits, &mut dots[0]);
            for run in 0..self.runs {
                let activations = activations.as_ptr().add(run * rows);
                if run + 1 < self.runs {
                    multiply_run::<T, K>(
                        tiles,
                        &self.codes[run + 1],
                        activations.add(rows),
                        bits,
                        &mut dots[(run + 1) % 2],
                    );
                }
                let scales = self.scales[run].assume_init_ref();
                add_scaled::<K, WHOLE>(&mut registers, (&dots[run % 2], bits), scales, activations, rows);
            }
            for (row, register) in registers.iter().enumerate() {
                _mm512_storeu_ps(sums[row].as_mut_ptr(), *register);
            }
        }
    }
}

/// Computes the products of one run.
#[inline(always)]
unsafe fn multiply_run<T: Tiles, K: Terms>(
    tiles: &mut T,
    codes: &[[u8; QUAD_BYTES]; QUADS + QUADS / 2],
    activations: *const Block,
    bits: ActivationBits,
    dots: &mut Dots,
) {
    let has_low = bits == ActivationBits::Fifteen;
    let activations = activations.cast::<u8>();
    let [[high, low], [second_high, second_low]] = &mut dots.0;
    // SAFETY: the tiles have the shapes of `shapes`: the planes of consecutive rows, eight quads, and not more rows of
    // sums than `dots` has.
    unsafe {
        tiles.load::<HIGH>(activations.add(offset_of!(Block, high)), size_of::<Block>());
        tiles.load::<{ CODES[0] }>(codes.as_ptr().cast(), QUAD_BYTES);
        tiles.zero::<{ HIGH_SUMS[0] }>();
        tiles.add_products::<{ HIGH_SUMS[0] }, HIGH, { CODES[0] }>();
        if has_low {
            tiles.load::<LOW>(activations.add(offset_of!(Block, low)), size_of::<Block>());
            tiles.zero::<{ LOW_SUMS[0] }>();
            tiles.add_products::<{ LOW_SUMS[0] }, LOW, { CODES[0] }>();
        }
        if K::HALVES {
            tiles.load::<{ CODES[1] }>(codes[QUADS / 2..].as_ptr().cast(), QUAD_BYTES);
            tiles.zero::<{ HIGH_SUMS[1] }>();
            tiles.add_products::<{ HIGH_SUMS[1] }, HIGH, { CODES[1] }>();
            if has_low {
                tiles.zero::<{ LOW_SUMS[1] }>();
                tiles.add_products::<{ LOW_SUMS[1] }, LOW, { CODES[1] }>();
            }
        }
        tiles.store::<{ HIGH_SUMS[0] }>(high.as_mut_ptr().cast(), ROW_BYTES);
        if has_low {
            tiles.store::<{ LOW_SUMS[0] }>(low.as_mut_ptr().cast(), ROW_BYTES);
        }
        if K::HALVES {
            tiles.store::<{ HIGH_SUMS[1] }>(second_high.as_mut_ptr().cast(), ROW_BYTES);
            if has_low {
                tiles.store::<{ LOW_SUMS[1] }>(second_low.as_mut_ptr().cast(), ROW_BYTES);
            }
        }
    }
}

/// Scales the products of one run and adds them to the sums of each row.
#[inline(always)]
unsafe fn add_scaled<K: Terms, const WHOLE: bool>(
    sums: &mut [__m512; PANEL_ROWS],
    dots: (&Dots, ActivationBits),
    scales: &Scales<Zmm>,
    activations: *const Block,
    rows: usize,
) {
    // SAFETY: the caller guarantees the same.
    unsafe {
        if WHOLE {
            // This is not a loop over sixteen rows, because the compiler would keep the sums in memory.
            let [first, second, third, fourth] = sums.as_chunks_mut::<4>().0 else { unreachable!("sixteen rows") };
            add_scaled_rows::<K>(first, 0, dots, scales, activations);
            add_scaled_rows::<K>(second, 4, dots, scales, activations);
            add_scaled_rows::<K>(third, 8, dots, scales, activations);
            add_scaled_rows::<K>(fourth, 12, dots, scales, activations);
        } else {
            add_scaled_rows::<K>(&mut sums[..rows], 0, dots, scales, activations);
        }
    }
}

/// Scales the products of one run and adds them to the sums of the rows, starting at row `first`.
#[inline(always)]
unsafe fn add_scaled_rows<K: Terms>(
    sums: &mut [__m512],
    first: usize,
    (dots, bits): (&Dots, ActivationBits),
    scales: &Scales<Zmm>,
    activations: *const Block,
) {
    for (row, sum) in sums.iter_mut().enumerate() {
        let row = first + row;
        // SAFETY: `dots` and `activations` contain the row; the caller guarantees the CPU features.
        unsafe {
            let activations = &*activations.add(row);
            let first = dots.of::<0>(row, bits);
            let second = if K::HALVES { dots.of::<1>(row, bits) } else { Zmm::zero() };
            let product = products::product::<Zmm, K>([first, second], scales, activations, 0);
            *sum = Zmm::multiply_add(product, Zmm::splat(activations.scale), *sum);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
