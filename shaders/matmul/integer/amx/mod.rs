//! AMX: the dot products of sixteen rows with sixteen outputs in two instructions.
//!
//! - this file: the kernel
//! - [`tiles`]: the instructions, and whether a machine has them
//! - `model`: the instructions in plain Rust, for tests
//!
//! A tile of activations is one plane of the rows of a panel: 32 columns, as [`Block`]s hold them. A tile of codes is 32
//! columns of a strip: eight quads, as they are packed, but less their offset, since tiles take signed bytes. Their product
//! is exact; it passes through memory to AVX-512, and from there on everything is as in [`tile`]: so are the bits.
//!
//! What 16 rows, 16 outputs and 32 columns cost. Instructions are counted in the compiled loops; cycles are reckoned, not
//! measured: a product of tiles takes 16 however few its columns, a tile 8 to be read and 16 to be written, and there are
//! two operations on registers of 64 bytes each cycle, of which VNNI needs 256 for its dot products alone.
//!
//! | groups of | minimum | instructions | cycles of products | of tiles read, written | of scaling | at best | with VNNI |
//! |---|---|---|---|---|---|---|---|
//! | 32 | no  | 120 | 32 | 20, 32 | 40  | 40  | 190 |
//! | 32 | yes | 180 | 32 | 20, 32 | 64  | 64  | 200 |
//! | 16 | no  | 190 | 64 | 24, 64 | 72  | 72  | 210 |
//! | 16 | yes | 320 | 64 | 24, 64 | 120 | 120 | 230 |
//!
//! Scaling is the larger part. So codes lose their offset where they are unpacked, once for up to [`MOST_PANELS`] panels, and
//! not with every row; and while the products of one run are formed, those of the run before are scaled.

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
use super::avx512::Zmm;
use super::packed::{Packing, QUAD_BYTES, QUADS, STRIP_ROWS};
use super::registers::Registers;
use super::tile::{self, Scales, Units};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::quant::{BlockFormat, MAX_BLOCK_LEN};
use tiles::{Amx, ROW_BYTES, Shapes, Tiles};

/// Rows from which tiles pay: with fewer, memory is the limit, or most of a tile is empty.
const LEAST_ROWS: usize = 5;
/// Panels that share the unpacking of a strip.
const MOST_PANELS: usize = 16;
/// Strips that share the way of activations from the second-level cache to the first.
const STRIPS: usize = 2;
/// Runs of 32 columns that are unpacked at a time: the longest block.
const SPAN_RUNS: usize = MAX_BLOCK_LEN / BLOCK_LEN;
/// Bytes of rows to which strips come back: half of the second-level cache of any processor that has AMX.
const ROWS_IN_CACHE_BYTES: usize = 1024 * 1024;

/// The registers: the planes of the activations, the codes (of each group, where a run has two), and the sums of each
/// group with each plane.
const HIGH: usize = 0;
const LOW: usize = 1;
const CODES: [usize; 2] = [2, 3];
const HIGH_SUMS: [usize; 2] = [4, 5];
const LOW_SUMS: [usize; 2] = [6, 7];

/// The shapes of the registers for so many rows.
const fn shapes(rows: usize) -> Shapes {
    let (activations, codes, sums) = ((rows, BLOCK_LEN), (QUADS, QUAD_BYTES), (rows, ROW_BYTES));
    Shapes::new([activations, activations, codes, codes, sums, sums, sums, sums])
}

/// Computes the task.
///
/// # Safety
/// The machine must have AVX-512 (F, BW, VL) with VNNI, FMA and F16C, and tiles must be supported ([`tiles::is_supported`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::matmul) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    // SAFETY: this function has the features; the caller vouches for the tiles.
    unsafe { run_with::<Amx, F>(task) }
}

/// Computes the task with these tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_with<T: Tiles, F: BlockFormat>(task: &Task<'_>) {
    if F::INTEGERS.is_none() {
        return;
    }
    let (_, panels) = task.packed();
    let rows = panels.rows();
    let (whole, rest) = (rows - rows % PANEL_ROWS, rows % PANEL_ROWS);
    let panels_in_cache = (ROWS_IN_CACHE_BYTES / (PANEL_ROWS * panels.row_bytes()).max(1)).clamp(1, MOST_PANELS);
    // SAFETY: this function has the features; the caller vouches for the tiles.
    unsafe {
        for first in (0..whole).step_by(panels_in_cache * PANEL_ROWS) {
            multiply::<T, F, true>(task, first..whole.min(first + panels_in_cache * PANEL_ROWS));
        }
        if rest >= LEAST_ROWS {
            multiply::<T, F, false>(task, whole..rows);
        } else if rest > 0 {
            tile::run_rows::<Zmm, F>(task, whole..rows);
        }
    }
}

/// The sums of a panel with a strip.
type Sums = [[f32; STRIP_ROWS]; PANEL_ROWS];

/// Computes some rows of the task: up to [`MOST_PANELS`] whole panels (`WHOLE`), or one that is not.
#[inline(always)]
unsafe fn multiply<T: Tiles, F: BlockFormat, const WHOLE: bool>(task: &Task<'_>, rows: Range<usize>) {
    let (packed, panels) = task.packed();
    // SAFETY: the shapes are those that `products` asks for; the caller vouches for the tiles.
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
                // SAFETY: the caller has the features.
                unsafe { span.unpack::<F>(strip, blocks.clone()) };
            }
            for (row, sums) in panel_rows().zip(&mut *sums) {
                let panel = panels.panel(row);
                let activations = &panel.blocks[blocks.start * Packing::<F>::RUNS * panel.rows..];
                for (span, sums) in spans[..strips].iter().zip(sums) {
                    // SAFETY: the sums are zeros since the strips began; the rest is the caller's.
                    unsafe {
                        let sums = sums.assume_init_mut();
                        let activations = (activations, panel.rows, panel.bits);
                        span.add_products::<T, F, WHOLE>(&mut tiles, activations, &mut dots, sums);
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

/// Writes the sums of the panel that starts at `row` with the strip that starts at `first`.
fn finish(task: &Task<'_>, row: usize, first: usize, sums: &Sums) {
    let (_, panels) = task.packed();
    let outputs = STRIP_ROWS.min(task.outputs.end - first);
    for (index, sums) in sums[..panels.panel(row).rows].iter().enumerate() {
        task.finish(row + index, first, &sums[..outputs]);
    }
}

/// Some runs of a strip, unpacked.
#[repr(C, align(64))]
struct Span {
    /// For each run its quads. Where it has two groups, zeros lie between them, so that a tile of eight quads that starts at
    /// the first has one, and a tile that starts at the fifth the other.
    codes: [[[u8; QUAD_BYTES]; QUADS + QUADS / 2]; SPAN_RUNS],
    scales: [MaybeUninit<Scales<Zmm>>; SPAN_RUNS],
    runs: usize,
}

/// The dot products of a run: of each group, with the high and the low plane of the activations.
#[repr(C, align(64))]
struct Dots([[[[i32; STRIP_ROWS]; PANEL_ROWS]; 2]; 2]);

impl Dots {
    /// Those of a group and a row.
    #[inline(always)]
    unsafe fn of<const GROUP: usize>(&self, row: usize) -> __m512i {
        let [high, low] = &self.0[GROUP];
        // SAFETY: a row is a register; the caller has the features.
        unsafe {
            let high = Zmm::load(high[row].as_ptr().cast());
            Zmm::add(Zmm::scale_up::<LOW_BITS>(high), Zmm::load(low[row].as_ptr().cast()))
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
    unsafe fn unpack<F: BlockFormat>(&mut self, strip: &[u8], blocks: Range<usize>) {
        let layout = Packing::<F>::LAYOUT;
        self.runs = blocks.len() * Packing::<F>::RUNS;
        let strip = &strip[blocks.start * Packing::<F>::BYTES..blocks.end * Packing::<F>::BYTES];
        for (index, block) in strip.chunks_exact(Packing::<F>::BYTES).enumerate() {
            let block = block.as_ptr();
            tile::prefetch_beyond::<F>(block);
            // SAFETY: the block is a whole one; the caller has the features.
            unsafe {
                let units = Units::<Zmm>::load::<F>(block, 0);
                for run in 0..Packing::<F>::RUNS {
                    let quads = &mut self.codes[index * Packing::<F>::RUNS + run];
                    self.scales[index * Packing::<F>::RUNS + run].write(units.scales_of_run::<F>(block, 0, run));
                    let packed = block.add(Packing::<F>::CODES + run * Packing::<F>::RUN_BYTES);
                    for (quad, codes) in tile::unpack::<Zmm, F>(packed).into_iter().enumerate() {
                        let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(layout.offset as i8));
                        let place = if layout.group == 16 && quad >= QUADS / 2 { quad + QUADS / 2 } else { quad };
                        _mm512_storeu_si512(quads[place].as_mut_ptr().cast(), codes);
                    }
                }
            }
        }
    }

    /// Adds the products of the span with the rows of a panel, whose activations start where the span does.
    #[inline(always)]
    unsafe fn add_products<T: Tiles, F: BlockFormat, const WHOLE: bool>(
        &self,
        tiles: &mut T,
        (activations, rows, bits): (&[Block], usize, ActivationBits),
        dots: &mut [Dots; 2],
        sums: &mut Sums,
    ) {
        let rows = if WHOLE { PANEL_ROWS } else { rows };
        assert!((1..=PANEL_ROWS).contains(&rows) && self.runs <= SPAN_RUNS && activations.len() >= self.runs * rows);
        // SAFETY: every run has its rows among the activations by the line above, and products before it is scaled; the
        // caller has the features.
        unsafe {
            let mut registers = [_mm512_setzero_ps(); PANEL_ROWS];
            for (row, register) in registers.iter_mut().enumerate() {
                *register = _mm512_loadu_ps(sums[row].as_ptr());
            }
            products::<T, F>(tiles, &self.codes[0], activations.as_ptr(), bits, &mut dots[0]);
            for run in 0..self.runs {
                let activations = activations.as_ptr().add(run * rows);
                if run + 1 < self.runs {
                    products::<T, F>(
                        tiles,
                        &self.codes[run + 1],
                        activations.add(rows),
                        bits,
                        &mut dots[(run + 1) % 2],
                    );
                }
                let scales = self.scales[run].assume_init_ref();
                add_scaled::<F, WHOLE>(&mut registers, &dots[run % 2], scales, activations, rows);
            }
            for (row, register) in registers.iter().enumerate() {
                _mm512_storeu_ps(sums[row].as_mut_ptr(), *register);
            }
        }
    }
}

/// Forms the products of one run.
#[inline(always)]
unsafe fn products<T: Tiles, F: BlockFormat>(
    tiles: &mut T,
    codes: &[[u8; QUAD_BYTES]; QUADS + QUADS / 2],
    activations: *const Block,
    bits: ActivationBits,
    dots: &mut Dots,
) {
    // With 8 bits the sums of the low plane stay the zeros that they began as.
    let has_low = bits == ActivationBits::Fifteen;
    let activations = activations.cast::<u8>();
    let [[high, low], [second_high, second_low]] = &mut dots.0;
    // SAFETY: the tiles have `shapes`: the planes of rows that stand one after the other, eight quads, and as many rows of sums
    // as there is room for at most.
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
        if Packing::<F>::LAYOUT.group == 16 {
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
        if Packing::<F>::LAYOUT.group == 16 {
            tiles.store::<{ HIGH_SUMS[1] }>(second_high.as_mut_ptr().cast(), ROW_BYTES);
            if has_low {
                tiles.store::<{ LOW_SUMS[1] }>(second_low.as_mut_ptr().cast(), ROW_BYTES);
            }
        }
    }
}

/// Adds the products of one run, scaled, to the sums of each row.
#[inline(always)]
unsafe fn add_scaled<F: BlockFormat, const WHOLE: bool>(
    sums: &mut [__m512; PANEL_ROWS],
    dots: &Dots,
    scales: &Scales<Zmm>,
    activations: *const Block,
    rows: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        if WHOLE {
            // Not a loop over sixteen: the compiler would leave it one, with the sums in memory.
            let [first, second, third, fourth] = sums.as_chunks_mut::<4>().0 else { unreachable!("sixteen rows") };
            add_scaled_rows::<F>(first, 0, dots, scales, activations);
            add_scaled_rows::<F>(second, 4, dots, scales, activations);
            add_scaled_rows::<F>(third, 8, dots, scales, activations);
            add_scaled_rows::<F>(fourth, 12, dots, scales, activations);
        } else {
            add_scaled_rows::<F>(&mut sums[..rows], 0, dots, scales, activations);
        }
    }
}

/// Adds the products of one run, scaled, to the sums of the rows from `first` on.
#[inline(always)]
unsafe fn add_scaled_rows<F: BlockFormat>(
    sums: &mut [__m512],
    first: usize,
    dots: &Dots,
    scales: &Scales<Zmm>,
    activations: *const Block,
) {
    for (row, sum) in sums.iter_mut().enumerate() {
        let row = first + row;
        // SAFETY: the row is among those of the dots and activations; the caller has the features.
        unsafe {
            let activations = &*activations.add(row);
            let first = dots.of::<0>(row);
            let second = if Packing::<F>::LAYOUT.group == 16 { dots.of::<1>(row) } else { Zmm::zero() };
            // The codes have lost their offset already.
            let product = tile::product::<Zmm, F>([first, second], scales, activations, 0);
            *sum = Zmm::multiply_add(product, Zmm::splat(activations.scale), *sum);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
