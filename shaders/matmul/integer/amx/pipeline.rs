//! The products of unpacked codes and panels of activations, with four runs under way at a time.
//!
//! While the dot products of a run are scaled with AVX-512, those of the next run are stored from the tile registers, the run
//! after that is multiplied, and one more is loaded:
//!
//! | stage | instructions for 16 rows, 16 outputs and 32 columns |
//! |---|---|
//! | load | a tile of each plane of the activations, one of the codes of each group |
//! | multiply | a product for each group and plane |
//! | store | as many tiles of sums |
//! | scale | 16 rows of 3 to 12 operations on registers of 64 bytes |
//!
//! A tile instruction takes 8 to 52 cycles (Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX) and
//! waits for the last use of its registers, which are not renamed. So the stages of a run are one iteration apart, and the tile
//! instructions of an iteration are spread over the rows that are scaled.

use std::arch::x86_64::{__m512, __m512i, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_storeu_ps};
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;

use super::span::{Codes, SECOND_GROUP, Span};
use super::tiles::{ROW_BYTES, Shapes, Tiles};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::matmul::integer::activations::{BLOCK_LEN, Block, LOW_BITS, PANEL_ROWS};
use crate::matmul::integer::avx512::Zmm;
use crate::matmul::integer::packed::{QUAD_BYTES, QUADS, STRIP_ROWS};
use crate::matmul::integer::products::{self, Scales};
use crate::matmul::integer::registers::Registers;
use crate::matmul::integer::terms::{Terms, Work};

/// Strips that are multiplied with the activations of a panel while these are in the L1 cache.
pub(super) const STRIPS: usize = 2;

/// The tile registers: the planes of the activations, the codes (of each group if a run has two), and the sums for each
/// group and plane.
const HIGH_PLANE: usize = 0;
const LOW_PLANE: usize = 1;
const CODES: [usize; 2] = [2, 3];
const HIGH_SUMS: [usize; 2] = [4, 5];
const LOW_SUMS: [usize; 2] = [6, 7];

/// The shapes of the registers for `rows` rows.
pub(super) const fn shapes(rows: usize) -> Shapes {
    let (activations, codes, sums) = ((rows, BLOCK_LEN), (QUADS, QUAD_BYTES), (rows, ROW_BYTES));
    Shapes::new([activations, activations, codes, codes, sums, sums, sums, sums])
}

/// The results of a panel and a strip.
pub(super) type Sums = [[f32; STRIP_ROWS]; PANEL_ROWS];

/// Iterations from the load of a run until it is scaled.
const DEPTH: usize = 3;

/// Adds the products of some runs of each strip and each panel to the sums.
pub(super) struct AddProducts<'a, T: Tiles> {
    /// For each strip. All have the same number of runs.
    pub spans: &'a [Span],
    /// The first run of the spans.
    pub first_run: usize,
    /// The activations of each panel.
    pub panels: &'a [&'a [Block]],
    /// Rows of each panel.
    pub rows: usize,
    pub bits: ActivationBits,
    /// The results that are written after these products, if they are the last.
    pub results: Option<Results<'a>>,
    pub tiles: &'a mut T,
    pub dots: &'a mut [Dots; 2],
    /// For each panel and strip, initialised.
    pub sums: &'a mut [[MaybeUninit<Sums>; STRIPS]],
}

/// Results that will be written.
pub(super) struct Results<'a> {
    pub task: &'a Task<'a>,
    pub rows: Range<usize>,
    /// The first output of the first strip.
    pub first: usize,
}

impl Results<'_> {
    /// Prefetches the cache lines of the results of a panel and a strip.
    #[inline(always)]
    fn prefetch(&self, panel: usize, strip: usize) {
        let first_row = self.rows.start + panel * PANEL_ROWS;
        let rows = first_row..self.rows.end.min(first_row + PANEL_ROWS);
        self.task.prefetch_output(rows, self.first + strip * STRIP_ROWS);
    }
}

/// The dot products of a run, for each group and for the high and the low plane of the activations.
#[repr(C, align(64))]
pub(super) struct Dots([[[[i32; STRIP_ROWS]; PANEL_ROWS]; 2]; 2]);

impl Dots {
    pub(super) const ZERO: Dots = Dots([[[[0; STRIP_ROWS]; PANEL_ROWS]; 2]; 2]);

    /// The dot products of a group and a row, with both planes combined. With 8 bits (`!LOW`) the low plane has none.
    #[inline(always)]
    unsafe fn of<const GROUP: usize, const LOW: bool>(&self, row: usize) -> __m512i {
        let [high, low] = &self.0[GROUP];
        // SAFETY: a row has the size of a register; the caller guarantees the CPU features.
        unsafe {
            let high = Zmm::load(high[row].as_ptr().cast());
            if LOW { Zmm::add(Zmm::scale_up::<LOW_BITS>(high), Zmm::load(low[row].as_ptr().cast())) } else { high }
        }
    }
}

impl<T: Tiles> Work for AddProducts<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Terms>(self) {
        // SAFETY: the caller guarantees the same.
        unsafe {
            match (self.rows == PANEL_ROWS, self.bits) {
                (true, ActivationBits::Fifteen) => self.run_all::<K, true, true>(),
                (true, ActivationBits::Eight) => self.run_all::<K, true, false>(),
                (false, ActivationBits::Fifteen) => self.run_all::<K, false, true>(),
                (false, ActivationBits::Eight) => self.run_all::<K, false, false>(),
            }
        }
    }
}

impl<T: Tiles> AddProducts<'_, T> {
    /// Sends all runs through the pipeline. `WHOLE`: the panels are complete. `LOW`: activations have two planes.
    #[inline(always)]
    unsafe fn run_all<K: Terms, const WHOLE: bool, const LOW: bool>(self) {
        let runs = self.spans[0].runs();
        let rows = if WHOLE { PANEL_ROWS } else { self.rows };
        assert!((1..=PANEL_ROWS).contains(&rows) && runs > 0 && self.sums.len() >= self.panels.len());
        assert!(self.spans.iter().all(|span| span.runs() == runs));
        assert!(self.panels.iter().all(|panel| panel.len() >= (self.first_run + runs) * rows));
        // SAFETY: the assertions ensure that every panel has the rows of every run. The caller guarantees the rest.
        unsafe {
            let (dots, registers) = (self.dots.each_mut(), [_mm512_setzero_ps(); PANEL_ROWS]);
            let under_way = [const { MaybeUninit::uninit() }; DEPTH + 1];
            let mut pipeline = Pipeline { tiles: self.tiles, dots, rows, registers, under_way, entered: 0 };
            for panel in 0..self.panels.len() {
                for strip in 0..self.spans.len() {
                    self.results.iter().for_each(|results| results.prefetch(panel, strip));
                    let sums = self.sums[panel][strip].as_mut_ptr();
                    let mut activations = self.panels[panel].as_ptr().add(self.first_run * rows);
                    for run in 0..runs {
                        let (codes, scales) = self.spans[strip].run(run);
                        let (is_first, is_last) = (run == 0, run == runs - 1);
                        pipeline.advance::<K, WHOLE, LOW>(Run { codes, scales, activations, sums, is_first, is_last });
                        activations = activations.add(rows);
                    }
                }
            }
            pipeline.finish::<K, WHOLE, LOW>();
        }
    }
}

/// A run of a strip and a panel.
#[derive(Clone, Copy)]
struct Run<'a> {
    codes: &'a Codes,
    scales: &'a Scales<Zmm>,
    /// The blocks of the rows.
    activations: *const Block,
    sums: *mut Sums,
    /// Whether it is the first or the last of the span.
    is_first: bool,
    is_last: bool,
}

/// The runs under way.
struct Pipeline<'a, T: Tiles> {
    tiles: &'a mut T,
    /// The dot products that are scaled, and those that are stored.
    dots: [&'a mut Dots; 2],
    rows: usize,
    /// The sums of the rows of the run that is scaled.
    registers: [__m512; PANEL_ROWS],
    /// The run that enters, and those that are loaded, multiplied and stored, in a ring.
    under_way: [MaybeUninit<Run<'a>>; DEPTH + 1],
    /// The runs that have entered.
    entered: usize,
}

impl<'a, T: Tiles> Pipeline<'a, T> {
    /// Loads a run and moves every run under way to its next stage.
    #[inline(always)]
    unsafe fn advance<K: Terms, const WHOLE: bool, const LOW: bool>(&mut self, next: Run<'a>) {
        self.under_way[self.entered % (DEPTH + 1)].write(next);
        self.entered += 1;
        // SAFETY: `DEPTH` runs have entered after this place of the ring was written.
        let scaled =
            (self.entered > DEPTH).then(|| unsafe { self.under_way[self.entered % (DEPTH + 1)].assume_init() });
        let scaled = scaled.as_ref();
        // SAFETY: the caller guarantees valid runs and the CPU features. Before the first runs arrive, tiles are multiplied and
        // stored that no run uses.
        unsafe {
            if let Some(run) = scaled.filter(|run| run.is_first) {
                self.load_sums(run);
            }
            self.multiply_high::<0>();
            self.scale::<K, WHOLE, LOW, 0>(scaled);
            if LOW {
                self.multiply_low::<0>();
            }
            self.tiles.load::<{ CODES[0] }>(next.codes.as_ptr().cast(), QUAD_BYTES);
            self.scale::<K, WHOLE, LOW, 1>(scaled);
            if K::HALVES {
                self.multiply_high::<1>();
            }
            self.tiles
                .load::<HIGH_PLANE>(next.activations.byte_add(offset_of!(Block, high)).cast(), size_of::<Block>());
            self.scale::<K, WHOLE, LOW, 2>(scaled);
            if K::HALVES && LOW {
                self.multiply_low::<1>();
            }
            if LOW {
                self.tiles
                    .load::<LOW_PLANE>(next.activations.byte_add(offset_of!(Block, low)).cast(), size_of::<Block>());
            }
            if K::HALVES {
                self.tiles.load::<{ CODES[1] }>(next.codes[SECOND_GROUP..].as_ptr().cast(), QUAD_BYTES);
            }
            self.scale::<K, WHOLE, LOW, 3>(scaled);
            if let Some(run) = scaled.filter(|run| run.is_last) {
                self.store_sums(run);
            }
        }
        self.dots.swap(0, 1);
    }

    /// Moves every run to its end. The last one is loaded again meanwhile.
    #[inline(always)]
    unsafe fn finish<K: Terms, const WHOLE: bool, const LOW: bool>(&mut self) {
        for _ in 0..DEPTH {
            // SAFETY: the caller guarantees that a run has entered, and the rest.
            unsafe {
                let last = self.under_way[(self.entered - 1) % (DEPTH + 1)].assume_init();
                self.advance::<K, WHOLE, LOW>(last);
            }
        }
    }

    /// Stores the products of a group and the high plane of the run that is multiplied already, and multiplies those of the
    /// loaded run.
    #[inline(always)]
    unsafe fn multiply_high<const GROUP: usize>(&mut self) {
        let [[high, _], [second_high, _]] = &mut self.dots[1].0;
        // SAFETY: the tiles have the shapes of `shapes`, and not more rows of sums than `dots` has.
        unsafe {
            if GROUP == 0 {
                self.tiles.store::<{ HIGH_SUMS[0] }>(high.as_mut_ptr().cast(), ROW_BYTES);
                self.tiles.zero::<{ HIGH_SUMS[0] }>();
                self.tiles.add_products::<{ HIGH_SUMS[0] }, HIGH_PLANE, { CODES[0] }>();
            } else {
                self.tiles.store::<{ HIGH_SUMS[1] }>(second_high.as_mut_ptr().cast(), ROW_BYTES);
                self.tiles.zero::<{ HIGH_SUMS[1] }>();
                self.tiles.add_products::<{ HIGH_SUMS[1] }, HIGH_PLANE, { CODES[1] }>();
            }
        }
    }

    /// Likewise for the low plane.
    #[inline(always)]
    unsafe fn multiply_low<const GROUP: usize>(&mut self) {
        let [[_, low], [_, second_low]] = &mut self.dots[1].0;
        // SAFETY: as above.
        unsafe {
            if GROUP == 0 {
                self.tiles.store::<{ LOW_SUMS[0] }>(low.as_mut_ptr().cast(), ROW_BYTES);
                self.tiles.zero::<{ LOW_SUMS[0] }>();
                self.tiles.add_products::<{ LOW_SUMS[0] }, LOW_PLANE, { CODES[0] }>();
            } else {
                self.tiles.store::<{ LOW_SUMS[1] }>(second_low.as_mut_ptr().cast(), ROW_BYTES);
                self.tiles.zero::<{ LOW_SUMS[1] }>();
                self.tiles.add_products::<{ LOW_SUMS[1] }, LOW_PLANE, { CODES[1] }>();
            }
        }
    }

    /// Scales the products of a quarter of the rows of a panel and adds them to their sums.
    #[inline(always)]
    unsafe fn scale<K: Terms, const WHOLE: bool, const LOW: bool, const QUARTER: usize>(
        &mut self,
        run: Option<&Run<'a>>,
    ) {
        const QUARTER_ROWS: usize = PANEL_ROWS / 4;
        let Some(run) = run else { return };
        for row in QUARTER * QUARTER_ROWS..(QUARTER + 1) * QUARTER_ROWS {
            if !WHOLE && row >= self.rows {
                return;
            }
            // SAFETY: the run and `dots` have the row; the caller guarantees the CPU features.
            unsafe {
                let activations = &*run.activations.add(row);
                let first = self.dots[0].of::<0, LOW>(row);
                let second = if K::HALVES { self.dots[0].of::<1, LOW>(row) } else { Zmm::zero() };
                let product = products::product::<Zmm, K>([first, second], run.scales, activations, 0);
                let sum = &mut self.registers[row];
                *sum = Zmm::multiply_add(product, Zmm::splat(activations.scale), *sum);
            }
        }
    }

    /// Loads the sums of the rows of a run.
    #[inline(always)]
    unsafe fn load_sums(&mut self, run: &Run<'a>) {
        // SAFETY: the sums are initialised; the caller guarantees the CPU features.
        let sums = unsafe { &*run.sums };
        for (register, sums) in self.registers.iter_mut().zip(sums) {
            // SAFETY: as above.
            *register = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
    }

    /// Stores the sums of the rows of a run.
    #[inline(always)]
    unsafe fn store_sums(&mut self, run: &Run<'a>) {
        // SAFETY: the pipeline has exclusive access to the sums; the caller guarantees the CPU features.
        let sums = unsafe { &mut *run.sums };
        for (register, sums) in self.registers.iter().zip(sums) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *register) };
        }
    }
}
