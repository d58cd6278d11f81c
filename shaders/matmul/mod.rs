//! Linear layers: the product of one input with one or several quantised weights.
//!
//! - [`Linear`]: the op, its checks, and how its work is split into tasks
//! - [`mod@reference`]: the float64 reference, for tests
//! - [`scalar`], `avx2`, `avx512`, `neon`: the float32 kernels, one file per instruction set
//! - `bfloat16`, `avx512_bf16`: BF16 weights with activations rounded to BF16
//! - [`integer`]: the kernels that round the input to 15 bits
//! - `heads`: the op with one weight per head of the input
//! - `gpu`: the GPU dispatches
//! - `cases`: test cases
//!
//! **The bits of a row do not depend on the call.** A result is the product of one input row and one weight row. Every
//! float32 kernel computes it as a fixed number of running sums: sum `l` adds the columns `l`, `l + LANES`,
//! `l + 2 LANES` … in that order. The sums are then added in one fixed order, and the bias last. Tiles, panels and
//! tasks only determine *which* results are computed together, never the order of additions in a result. So a result
//! does not depend on the number of rows, the index of the row, the number of threads, or the split of the work. The
//! integer kernels have their own fixed order (see [`integer`]).

#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "the portable kernel uses little of it")
)]

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::SharedMut;
use crate::op::ShapeError;
use crate::prefetch::prefetch;
use crate::tuning::Tuning;
use crate::weight::Weight;
use bfloat16::RoundedRows;
use integer::activations::Panels;
use integer::packed::PackedWeight;

pub use bfloat16::rounds_to_bfloat16;
pub use cases::{cases, half_cases};
pub(crate) use inputs::{exact_activations, parts};

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_pairs;
mod bfloat16;
mod cases;
mod few_rows;
pub(crate) mod gpu;
mod heads;
mod inputs;
pub mod integer;
pub(crate) mod mat_vec;
#[cfg(target_arch = "aarch64")]
pub mod neon;
mod op;
pub mod reference;
mod run;
pub mod scalar;

pub use gpu::cooperative_shape_fits;
pub use heads::HeadLinear;

/// `y[r, o] = sum_c x[r, c] * w[o, c] + b[o]`, for one or several weights `w` that share the input `x`.
///
/// - x: [rows, columns] f32
/// - w: [outputs, columns] in any format, never expanded in memory. Several weights (such as those of query, key and
///   value) form one op, so that the threads share their work in one pass
/// - b: `[outputs]` f32, or none
/// - y: one for each weight, [rows, outputs] f32
/// - Float32 kernels decode weights to float32 and multiply them with float32 activations. They agree with
///   [`mod@reference`] within the rounding of float32 sums
/// - Integer kernels round x to 15 bits in blocks of 32 if the weight is quantised. The rounding error is at most half
///   a step; a step is the largest magnitude of the block divided by 127 * 128. They agree with [`mod@reference`]
///   within that error
/// - With 8 bits, x is rounded to BF16 if w is in BF16 and the CPU has AVX512-BF16
/// - GPUs compute in float32, with another order of additions. If the GPU multiplies float16 matrices, w is not stored
///   in float32, and the step has more than 8 rows, then each row of x is rounded to at least 11 bits relative to its
///   largest magnitude, and the decoded weights to 11 bits. The result agrees with [`mod@reference`] within that error
/// - Cost: with few rows bound by reading every weight once, with many rows by arithmetic
#[derive(Debug, Clone)]
pub struct Linear {
    weights: Vec<Weight>,
    biases: Vec<Option<Arc<[f32]>>>,
    /// Weights for the integer kernels, after preparation; `None` for floating-point weights.
    packed: Vec<Option<PackedWeight>>,
}

/// The most weights that can share an input.
const MAX_WEIGHTS: usize = 8;

impl Linear {
    /// The product with `weights`, each with an optional bias.
    ///
    /// # Errors
    /// [`ShapeError`] when there are no weights or more than 8, they differ in columns, or a bias does not fit.
    pub fn new(weights: Vec<Weight>, biases: Vec<Option<Arc<[f32]>>>) -> Result<Self, ShapeError> {
        ShapeError::check("linear", "number of biases (present or not)", biases.len(), weights.len())?;
        if !(1..=MAX_WEIGHTS).contains(&weights.len()) {
            return Err(ShapeError::Mismatch {
                op: "linear",
                what: "number of weights".to_owned(),
                found: weights.len(),
                expected: format!("1 to {MAX_WEIGHTS}"),
            });
        }
        let columns = weights[0].columns;
        for (weight, bias) in weights.iter().zip(&biases) {
            ShapeError::check("linear", format!("columns of {:?}", weight.name), weight.columns, columns)?;
            if let Some(bias) = bias {
                ShapeError::check("linear", format!("bias of {:?}", weight.name), bias.len(), weight.rows)?;
            }
        }
        Ok(Linear { weights, biases, packed: Vec::new() })
    }
}

/// The most outputs that the float32 kernels compute together.
const TILE_OUTPUTS: usize = 8;
/// The outputs of a task are a multiple of this, which is a multiple of the tile of every kernel.
pub(crate) const TASK_OUTPUTS: usize = integer::packed::STRIP_ROWS;

/// A task: some columns of one output, for all rows.
pub(crate) struct Task<'a> {
    pub weight: &'a Weight,
    /// Multiplies each sum, before the bias.
    pub factor: f32,
    pub bias: Option<&'a [f32]>,
    /// Rows of the weight, which are columns of the output. Tasks of the same output have disjoint ranges.
    pub outputs: Range<usize>,
    /// [rows, columns]; may be empty if there are `integers`.
    pub input: &'a [f32],
    /// The weight and the input for the integer kernels.
    pub integers: Option<(&'a PackedWeight, Panels<'a>)>,
    /// The input for BF16 weights, if it is rounded to BF16.
    pub rounded: Option<RoundedRows<'a>>,
    pub rows: usize,
    pub tuning: Tuning,
    /// [rows, weight.rows]
    pub output: &'a SharedMut<'a, f32>,
}

impl<'a> Task<'a> {
    /// The weight and the input for the integer kernels.
    fn packed(&self) -> (&'a PackedWeight, Panels<'a>) {
        self.integers.expect("an integer kernel runs only on packed weights")
    }

    /// The values of one row of the input in `columns`.
    #[inline(always)]
    fn input(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let start = row * self.weight.columns;
        &self.input[start + columns.start..start + columns.end]
    }

    /// Prefetches the cache lines to which [`Task::finish`] will write the results of some rows. Each row has one, so stores
    /// would wait for memory that no hardware prefetcher expects.
    #[inline(always)]
    fn prefetch_output(&self, rows: Range<usize>, first: usize) {
        for row in rows {
            prefetch(self.output.address(row * self.weight.rows + first).cast());
        }
    }

    /// Applies the factor and the bias to finished sums and writes them to row `row`, outputs `first..first + sums.len()`.
    #[inline(always)]
    fn finish(&self, row: usize, first: usize, sums: &[f32]) {
        assert!(self.outputs.start <= first && first + sums.len() <= self.outputs.end);
        // SAFETY: no other task accesses these columns (see `outputs`), and this task holds no other slice of the
        // output.
        let output = unsafe { self.output.slice(row * self.weight.rows + first, sums.len()) };
        match (<&mut [f32; TASK_OUTPUTS]>::try_from(&mut *output), <&[f32; TASK_OUTPUTS]>::try_from(sums)) {
            // Most sums are whole strips, which are stored without a call to memcpy.
            (Ok(output), Ok(sums)) => *output = *sums,
            _ => output.copy_from_slice(sums),
        }
        if !self.is_plain() {
            self.scale_and_add(first, output);
        }
    }

    /// [`Task::finish`] for consecutive rows, from output `first` on. The sums are those of whole strips; those past the last
    /// output are not written.
    #[inline(always)]
    fn finish_rows(&self, rows: Range<usize>, first: usize, sums: &[[f32; TASK_OUTPUTS]]) {
        let outputs = TASK_OUTPUTS.min(self.outputs.end - first);
        if outputs < TASK_OUTPUTS || !self.is_plain() {
            return rows.zip(sums).for_each(|(row, sums)| self.finish(row, first, &sums[..outputs]));
        }
        assert!(self.outputs.start <= first);
        for (row, sums) in rows.zip(sums) {
            // SAFETY: as in `finish`.
            let output = unsafe { self.output.slice(row * self.weight.rows + first, TASK_OUTPUTS) };
            output.copy_from_slice(sums);
        }
    }

    /// Whether sums are the results.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.factor == 1.0 && self.bias.is_none()
    }

    /// Multiplies the sums of outputs from `first` on by the factor, and adds the bias.
    #[inline(never)]
    fn scale_and_add(&self, first: usize, output: &mut [f32]) {
        if self.factor != 1.0 {
            output.iter_mut().for_each(|output| *output *= self.factor);
        }
        if let Some(bias) = self.bias {
            for (output, bias) in output.iter_mut().zip(&bias[first..]) {
                *output += bias;
            }
        }
    }
}

#[cfg(test)]
mod tests;
