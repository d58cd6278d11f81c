//! Unpacked codes of a strip, as tiles expect them.

use std::arch::x86_64::{_mm512_set1_epi8, _mm512_storeu_si512, _mm512_sub_epi8};
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::matmul::integer::activations::BLOCK_LEN;
use crate::matmul::integer::avx512::Zmm;
use crate::matmul::integer::packed::{Packing, QUAD_BYTES, QUADS};
use crate::matmul::integer::products::Scales;
use crate::matmul::integer::tile::{self, Units};
use crate::quant::{BlockFormat, MAX_BLOCK_LEN};

/// Runs of 32 columns that are unpacked at a time: the longest block.
pub(super) const SPAN_RUNS: usize = MAX_BLOCK_LEN / BLOCK_LEN;

/// The codes of a run: its quads. If it has two groups, zeros are stored between them: a tile of eight quads that starts at the
/// first quad contains only the first group, and one that starts at [`SECOND_GROUP`] contains only the second.
pub(super) type Codes = [[u8; QUAD_BYTES]; QUADS + QUADS / 2];

/// The quad at which the tile of the second group starts.
pub(super) const SECOND_GROUP: usize = QUADS / 2;

/// Some unpacked runs of a strip.
#[repr(C, align(64))]
pub(super) struct Span {
    codes: [Codes; SPAN_RUNS],
    scales: [MaybeUninit<Scales<Zmm>>; SPAN_RUNS],
    runs: usize,
}

impl Span {
    pub(super) const NONE: Span = Span {
        codes: [[[0; QUAD_BYTES]; QUADS + QUADS / 2]; SPAN_RUNS],
        scales: [const { MaybeUninit::uninit() }; SPAN_RUNS],
        runs: 0,
    };

    /// The number of runs.
    #[inline(always)]
    pub(super) fn runs(&self) -> usize {
        self.runs
    }

    /// The codes and the scales of a run.
    #[inline(always)]
    pub(super) fn run(&self, run: usize) -> (&Codes, &Scales<Zmm>) {
        assert!(run < self.runs);
        // SAFETY: `unpack` writes the scales of every run below `runs`.
        (&self.codes[run], unsafe { self.scales[run].assume_init_ref() })
    }

    /// Unpacks blocks of a strip.
    ///
    /// # Safety
    /// The CPU must support AVX-512 (F, BW, VL) with VNNI, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn unpack<F: BlockFormat>(&mut self, strip: &[u8], blocks: Range<usize>, prefetch_ahead: usize) {
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
                        let index = if layout.group == 16 && quad >= SECOND_GROUP { quad + QUADS / 2 } else { quad };
                        _mm512_storeu_si512(quads[index].as_mut_ptr().cast(), codes);
                    }
                }
            }
        }
    }
}
