//! Linear: one input times one or several quantised weights.
//!
//! - [`Linear`]: the op, its checks, and how its work is split into tasks
//! - [`mod@reference`]: the same in float64, for tests
//! - [`scalar`], [`avx2`]: the kernels in float32, one file an instruction set
//! - [`integer`]: the kernels that round the input to 15 bits
//! - `heads`: a weight for each head of the input
//! - `gpu`: what runs on a GPU
//! - `cases`: what must come out
//!
//! **A row's bits do not depend on the call.** Every float32 kernel forms a result, that is one input row times one weight row,
//! as a fixed number of running sums: sum `l` takes the columns `l`, `l + LANES`, `l + 2 LANES` … in that order; the
//! sums are then added in one fixed order, and the bias last. Tiles, panels and tasks only choose *which* results are
//! formed together, never the order of additions inside one. So the result is the same whatever the number of rows, the row's
//! place among them, the number of threads, or the split of the work. The integer kernels have their own fixed order
//! (see [`integer`]).

use std::ops::Range;
use std::sync::Arc;

use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut, Team};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::dispatch;
use crate::weight::Weight;
use integer::activations::{self, Panels};
use integer::packed::PackedWeight;

pub use cases::{cases, half_cases};
pub(crate) use cases::{exact_activations, parts};

#[cfg(target_arch = "x86_64")]
pub mod avx2;
mod cases;
pub(crate) mod gpu;
mod heads;
pub mod integer;
pub mod reference;
pub mod scalar;

pub use gpu::cooperative_shape_fits;
pub use heads::HeadLinear;

/// `y[r, o] = sum_c x[r, c] * w[o, c] + b[o]`, for each of one or several weights `w` that share the input `x`.
///
/// - x: [rows, columns] f32
/// - w: [outputs, columns] in any format, never expanded in memory; several weights (such as those of query, key and
///   value) are one op, so that their work is shared among the threads at once
/// - b: `[outputs]` f32, or none
/// - y: one for each weight, [rows, outputs] f32
/// - In the float32 kernels weights are decoded to float32 and multiplied with float32 activations: agrees with
///   [`mod@reference`] to the rounding of float32 sums
/// - In the integer kernels x is rounded to 15 bits in blocks of 32, by at most half a step of the block's largest
///   magnitude over 127 * 128, wherever the weight is quantised: agrees with [`mod@reference`] to that
/// - On a GPU in float32, in another order of additions. Where it multiplies matrices of float16, w is not stored in float32,
///   and the step has more than 8 rows, each row of x is rounded to 11 bits of its largest magnitude or better, and so are the
///   decoded weights of w: agrees with [`mod@reference`] to that
/// - Cost: with few rows reads every weight once; with many is bound by arithmetic
#[derive(Debug, Clone)]
pub struct Linear {
    weights: Vec<Weight>,
    biases: Vec<Option<Arc<[f32]>>>,
    /// For the integer kernels, once prepared; `None` for weights in floating point.
    packed: Vec<Option<PackedWeight>>,
}

/// How many weights can share an input.
const MAX_WEIGHTS: usize = 8;

impl Linear {
    /// The product with `weights`, and for each an optional bias.
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

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check("linear", "number of inputs", inputs.len(), 1)?;
        let first = &self.weights[0];
        ShapeError::check("linear", format!("input of {:?}", first.name), inputs[0], first.columns)?;
        Ok(self.weights.iter().map(|weight| weight.rows).collect())
    }

    fn weights(&self) -> Vec<&Weight> {
        self.weights.iter().collect()
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if kernel.is_integer() {
            self.packed = self.weights.iter().map(|weight| PackedWeight::new(weight, team)).collect();
        }
    }

    fn replaces(&self, kernel: Kernel, weight: &Weight) -> bool {
        kernel.is_integer() && weight.format.integers().is_some()
    }

    fn growth(&self, kernel: Kernel) -> u64 {
        let grows =
            |weight: &Weight| PackedWeight::size(weight).map_or(0, |size| size.saturating_sub(weight.bytes().len()));
        if kernel.is_integer() { self.weights.iter().map(|weight| grows(weight) as u64).sum() } else { 0 }
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        let rounds = self.weights.iter().any(|weight| self.replaces(kernel, weight));
        if rounds { activations::scratch_len(rows, self.weights[0].columns) } else { 0 }
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let mut cost = Cost { activation_bytes: args.activation_bytes(), ..Cost::default() };
        for weight in self.weights.iter().filter(|_| args.rows > 0) {
            let operations = 2 * (args.rows * weight.rows * weight.columns) as u64;
            if self.replaces(args.kernel, weight) {
                cost.memory_bytes += PackedWeight::size(weight).unwrap_or(0) as u64;
                cost.integer_operations += operations;
            } else {
                cost.memory_bytes += weight.bytes().len() as u64;
                cost.float_operations += operations;
            }
        }
        cost
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let kernel = args.kernel;
        assert!(kernel.is_supported(), "this machine cannot run the {kernel} kernel");
        assert_eq!(args.outputs.len(), self.weights.len(), "one output for each weight");
        let (input, rows, columns) = (args.inputs[0], args.rows, self.weights[0].columns);
        assert_eq!(input.len(), rows * columns, "input of {:?} for {rows} rows", self.weights[0]);
        let panels = (self.scratch_len(kernel, rows, 0) > 0)
            .then(|| Panels::round(kernel, args.activation_bits, args.team, input, rows, columns, args.scratch));
        assert!(!kernel.is_integer() || self.packed.len() == self.weights.len(), "linear: not prepared for {kernel}");
        let mut outputs = args.outputs.iter_mut();
        let outputs: [Option<SharedMut<'_, f32>>; MAX_WEIGHTS] =
            std::array::from_fn(|_| outputs.next().map(|output| SharedMut::new(output)));

        // Tasks are numbered through all weights, so that the threads share them in one go.
        let per_task = self.outputs_per_task(args.team.threads(), rows);
        let tasks = self.weights.iter().map(|weight| weight.rows.div_ceil(per_task)).sum();
        args.team.for_each(tasks, &|task| {
            let mut task = task;
            for (index, (weight, output)) in self.weights.iter().zip(outputs.iter().flatten()).enumerate() {
                let of_weight = weight.rows.div_ceil(per_task);
                if task < of_weight {
                    let packed = self.packed.get(index).and_then(Option::as_ref);
                    let task = Task {
                        weight,
                        bias: self.biases[index].as_deref(),
                        outputs: task * per_task..weight.rows.min((task + 1) * per_task),
                        input,
                        integers: packed.zip(panels),
                        rows,
                        output,
                    };
                    return task.run(kernel);
                }
                task -= of_weight;
            }
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.biases.iter().flatten().map(|bias| &**bias).collect()
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, _: usize) -> u64 {
        gpu::scratch_bytes(self, device, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(self, args)
    }
}

impl Linear {
    /// How many outputs one task forms: a few tasks for each thread, so that a slow one can be made up for, but none so
    /// small that handing it out costs more than doing it.
    fn outputs_per_task(&self, threads: usize, rows: usize) -> usize {
        const TASKS_PER_THREAD: usize = 8;
        const LEAST_VALUES: usize = 32 * 1024;
        let outputs: usize = self.weights.iter().map(|weight| weight.rows).sum();
        let fair = if threads == 1 { outputs } else { outputs.div_ceil(threads * TASKS_PER_THREAD) };
        // A weight's value takes the longer the more rows it is multiplied with, but for the first few.
        const ROWS_WHILE_READ: usize = 16;
        let values_of_output = self.weights[0].columns.max(1) * rows.div_ceil(ROWS_WHILE_READ).max(1);
        let least = LEAST_VALUES.div_ceil(values_of_output);
        fair.max(least).next_multiple_of(TASK_OUTPUTS)
    }
}

/// Running sums of one result.
const LANES: usize = 8;
/// The float32 kernels form this many outputs together at most.
const TILE_OUTPUTS: usize = 8;
/// Tasks are a multiple of this many outputs: a multiple of every kernel's tile.
pub(crate) const TASK_OUTPUTS: usize = integer::packed::STRIP_ROWS;

/// What one task computes: a part of the columns of one output, for all rows.
pub(crate) struct Task<'a> {
    pub weight: &'a Weight,
    pub bias: Option<&'a [f32]>,
    /// Rows of the weight, which are columns of the output. No other task of the same output has any of them.
    pub outputs: Range<usize>,
    /// [rows, columns]; may be empty where there are `integers`.
    pub input: &'a [f32],
    /// The weight and the input for the integer kernels.
    pub integers: Option<(&'a PackedWeight, Panels<'a>)>,
    pub rows: usize,
    /// [rows, weight.rows]
    pub output: &'a SharedMut<'a, f32>,
}

impl<'a> Task<'a> {
    /// Computes it; the machine must support the kernel.
    #[cfg(target_arch = "x86_64")]
    pub fn run(&self, kernel: Kernel) {
        let kernel = match self.integers {
            Some(_) => kernel,
            // Weights in floating point are multiplied in float32.
            None if kernel.is_integer() => Kernel::Avx2,
            None => kernel,
        };
        // SAFETY: the ops that make tasks check that the machine supports the kernel; the integer ones need AVX2 too.
        unsafe {
            match kernel {
                Kernel::Scalar => dispatch!(self.weight.format, F => scalar::run::<F>(self)),
                Kernel::Avx2 => dispatch!(self.weight.format, F => avx2::run::<F>(self)),
                Kernel::Avx2Integer => dispatch!(self.weight.format, F => integer::avx2::run::<F>(self)),
                Kernel::AvxVnni => dispatch!(self.weight.format, F => integer::avx2::run_vnni::<F>(self)),
                Kernel::Avx512Vnni => dispatch!(self.weight.format, F => integer::avx512::run::<F>(self)),
                Kernel::AmxInt8 => dispatch!(self.weight.format, F => integer::amx::run::<F>(self)),
            }
        }
    }

    /// Computes it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn run(&self, _kernel: Kernel) {
        dispatch!(self.weight.format, F => scalar::run::<F>(self));
    }

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

    /// Adds the bias to finished sums and writes them: row `row`, outputs from `first` on.
    #[inline(always)]
    fn finish(&self, row: usize, first: usize, sums: &[f32]) {
        assert!(self.outputs.start <= first && first + sums.len() <= self.outputs.end);
        // SAFETY: these columns are this task's alone (see `outputs`), and it holds no other part of the output.
        let output = unsafe { self.output.slice(row * self.weight.rows + first, sums.len()) };
        match (<&mut [f32; TASK_OUTPUTS]>::try_from(&mut *output), <&[f32; TASK_OUTPUTS]>::try_from(sums)) {
            // Most come by strips, which are stored without a call.
            (Ok(output), Ok(sums)) => *output = *sums,
            _ => output.copy_from_slice(sums),
        }
        if let Some(bias) = self.bias {
            for (output, bias) in output.iter_mut().zip(&bias[first..]) {
                *output += bias;
            }
        }
    }
}

/// Adds up the running sums of a result, always in this order.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
