//! The product of each head of a row with the weight of the head.

use std::fmt;

use super::gpu;
use super::integer::activations::{self, Panels, Sources};
use super::integer::packed::PackedWeight;
use super::{TASK_OUTPUTS, Task, reference};
use crate::cases::{Case, CaseStep, Expected};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{ActivationBits, Kernel, SharedMut, Team};
use crate::gpu::{Dispatch, GpuArgs};
use crate::op::{CpuArgs, InputObserver, MatrixInput, Op, ShapeError};
use crate::quant::{Format, random};
use crate::tuning::Tuning;
use crate::weight::Weight;

/// `y[r, h, o] = sum_c x[r, h, c] * w[h, o, c]`: the projections of multi-head latent attention that
/// are absorbed into queries and outputs.
///
/// - x: [rows, heads * columns]; w: [heads * outputs, columns]; y: [rows, heads * outputs]
/// - Rounds like [`Linear`](super::Linear), but never to float16 on a GPU.
/// - Cost: reads the weight once; copies the rows into an order by head, and the results back.
/// - Source: DeepSeek-AI 2024, "DeepSeek-V2", 2.1.2.
pub struct HeadLinear {
    weight: Weight,
    /// The rows of the weight for each head.
    heads: Vec<Weight>,
    /// The weights of the heads for the integer kernels, after preparation. Empty for a floating-point weight.
    packed: Vec<PackedWeight>,
}

/// The most pairs of a row and a head that are computed together. It limits the scratch memory of long prefills.
const MAX_PAIRS: usize = 8192;

/// The sections of the scratch memory, in values.
struct ScratchLayout {
    gathered: usize,
    rounded: usize,
    output: usize,
}

impl HeadLinear {
    /// The product with `weight`, [heads * outputs, columns].
    ///
    /// # Errors
    /// [`ShapeError`] when the rows of the weight do not divide evenly among the heads.
    pub fn new(weight: Weight, heads: usize) -> Result<Self, ShapeError> {
        let outputs = weight.rows / heads.max(1);
        ShapeError::check("head_linear", format!("rows of {:?}", weight.name), weight.rows, outputs * heads)?;
        let heads = (0..heads).map(|head| weight.slice_rows(head * outputs..(head + 1) * outputs)).collect();
        Ok(HeadLinear { weight, heads, packed: Vec::new() })
    }

    /// Outputs of a head.
    fn outputs(&self) -> usize {
        self.weight.rows / self.heads.len().max(1)
    }

    fn rounds(&self, kernel: Kernel) -> bool {
        kernel.is_integer() && self.weight.format.integers().is_some()
    }

    /// Rows that are computed together.
    fn rows_at_once(&self) -> usize {
        (MAX_PAIRS / self.heads.len().max(1)).max(1)
    }

    fn scratch_layout(&self, kernel: Kernel, rows: usize) -> ScratchLayout {
        let (pairs, columns) = (rows * self.heads.len(), self.weight.columns);
        let (gathered, rounded) = match self.rounds(kernel) {
            true => (0, activations::scratch_len(pairs, columns)),
            false => (pairs * columns, 0),
        };
        ScratchLayout { gathered, rounded, output: pairs * self.outputs() }
    }

    /// Computes some rows. A pair is a row and a head; the pairs of a head are consecutive.
    fn compute(
        &self,
        (kernel, bits, tuning): (Kernel, ActivationBits, Tuning),
        team: &dyn Team,
        x: &[f32],
        scratch: &mut [f32],
        y: &mut [f32],
    ) {
        let (heads, columns, outputs) = (self.heads.len(), self.weight.columns, self.outputs());
        let rows = x.len() / (heads * columns);
        let ScratchLayout { gathered, rounded, output } = self.scratch_layout(kernel, rows);
        let (gathered, rest) = scratch.split_at_mut(gathered);
        let (rounded, rest) = rest.split_at_mut(rounded);
        let row_of_pair = |pair: usize| &x[(pair % rows * heads + pair / rows) * columns..][..columns];
        let panels = self.rounds(kernel).then(|| {
            let head_of_pair = |pair: usize| pair / rows * rows..(pair / rows + 1) * rows;
            let (pairs, sources) = (rows * heads, Sources::each_once(rows * heads, &row_of_pair));
            Panels::round_groups(kernel, bits, team, (pairs, columns), sources, &head_of_pair, rounded)
        });
        for (pair, gathered) in gathered.chunks_exact_mut(columns).enumerate() {
            gathered.copy_from_slice(row_of_pair(pair));
        }
        let gathered: &[f32] = gathered;
        let results: Vec<SharedMut<'_, f32>> =
            rest[..output].chunks_exact_mut(rows * outputs).map(SharedMut::new).collect();
        let tasks = outputs.div_ceil(self.outputs_per_task(team.threads()));
        let per_task = outputs.div_ceil(tasks.max(1)).next_multiple_of(TASK_OUTPUTS);
        team.for_each(heads * tasks, &|task| {
            let (head, first) = (task / tasks, task % tasks * per_task);
            if first >= outputs {
                return;
            }
            let pairs = head * rows..(head + 1) * rows;
            let integers = self.packed.get(head).zip(panels.map(|panels| panels.of_group(pairs.clone())));
            let input = if integers.is_some() { &[] } else { &gathered[pairs.start * columns..pairs.end * columns] };
            let outputs = first..outputs.min(first + per_task);
            let weight = &self.heads[head];
            let task = Task {
                weight,
                factor: 1.0,
                bias: None,
                outputs,
                input,
                integers,
                rounded: None,
                rows,
                tuning,
                output: &results[head],
            };
            // SAFETY: the CPU supports the kernel as `run_cpu` asserts, and the tasks of a head have disjoint outputs.
            unsafe { task.run(kernel) };
        });
        drop(results);
        for (pair, result) in rest[..output].chunks_exact(outputs).enumerate() {
            y[(pair % rows * heads + pair / rows) * outputs..][..outputs].copy_from_slice(result);
        }
    }

    /// Outputs of one task: over all heads, a few tasks for each thread.
    fn outputs_per_task(&self, threads: usize) -> usize {
        const TASKS_PER_THREAD: usize = 8;
        self.weight.rows.div_ceil(threads * TASKS_PER_THREAD).clamp(1, self.outputs().max(1))
    }
}

impl Op for HeadLinear {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        let name = &self.weight.name;
        let columns = self.heads.len() * self.weight.columns;
        ShapeError::check(self.name(), format!("input of {name:?}"), inputs[0], columns)?;
        Ok(vec![self.weight.rows])
    }

    fn weights(&self) -> Vec<&Weight> {
        vec![&self.weight]
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if kernel.is_integer() {
            self.packed = PackedWeight::together(&self.heads, team).unwrap_or_default();
        }
    }

    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        kernel.is_integer() && weight.format.integers().is_some()
    }

    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        let packed = self.heads.first().filter(|_| kernel.is_integer()).and_then(PackedWeight::size);
        packed.map_or(0, |size| (size * self.heads.len()).saturating_sub(self.weight.byte_len())) as u64
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        let ScratchLayout { gathered, rounded, output } = self.scratch_layout(kernel, rows.min(self.rows_at_once()));
        gathered + rounded + output
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let operations = 2 * (args.rows * self.weight.rows * self.weight.columns) as u64;
        let bytes = self.weight.byte_len() as u64 + self.repack_overhead_bytes(args.kernel);
        let (integer_operations, float_operations) =
            if self.rounds(args.kernel) { (operations, 0) } else { (0, operations) };
        Cost { memory_bytes: bytes, activation_bytes: args.activation_bytes(), integer_operations, float_operations }
    }

    fn run_observed(&self, args: &mut CpuArgs<'_>, observer: &mut dyn InputObserver) {
        let (columns, matrices) = (self.weight.columns, self.heads.len());
        for (index, rows) in args.inputs[0].chunks_exact(columns).enumerate() {
            let (tensor, matrix) = (self.weight.tensor(), index % matrices);
            observer.observe(MatrixInput { tensor, matrix, matrices, columns, rows });
        }
        self.run_cpu(args);
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let kernel = args.kernel;
        assert!(kernel.is_supported(), "this CPU does not support the {kernel} kernel");
        assert!(
            !self.rounds(kernel) || self.packed.len() == self.heads.len(),
            "head_linear: weights are not prepared for the {kernel} kernel"
        );
        let x = args.inputs[0];
        assert_eq!(x.len(), args.rows * self.heads.len() * self.weight.columns, "input of {:?}", self.weight);
        let rows = self.rows_at_once();
        let chunks = x.chunks((rows * self.heads.len() * self.weight.columns).max(1));
        for (x, y) in chunks.zip(args.outputs[0].chunks_mut((rows * self.weight.rows).max(1))) {
            self.compute((kernel, args.activation_bits, args.tuning), args.team, x, args.scratch, y);
        }
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![gpu::dispatch_of_heads(&self.weight, self.heads.len(), args)]
    }
}

impl fmt::Debug for HeadLinear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeadLinear({} heads of {:?})", self.heads.len(), self.weight)
    }
}

/// Test cases: one and many heads, quantised and floating-point weights, outputs that are not whole strips.
pub(super) fn cases() -> Vec<Case> {
    let shapes = [
        (Format::F32, 1, 5, 3),
        (Format::F32, 4, 16, 96),
        (Format::F16, 3, 70, 64),
        (Format::Q8_0, 5, 24, 128),
        (Format::Q4_0, 16, 40, 32),
        (Format::IQ4_XS, 2, 19, 256),
    ];
    shapes.into_iter().map(|(format, heads, outputs, columns)| case(format, heads, outputs, columns)).collect()
}

fn case(format: Format, heads: usize, outputs: usize, columns: usize) -> Case {
    let weight = random::weight("w", format, heads * outputs, columns, 5);
    let step = |rows: usize| {
        let x = super::inputs::exact_activations(rows * heads * columns, rows as u64);
        let mut expected = Vec::with_capacity(rows * heads * outputs);
        for row in x.chunks_exact(heads * columns) {
            for (head, x) in row.chunks_exact(columns).enumerate() {
                let head_weight = weight.slice_rows(head * outputs..(head + 1) * outputs);
                let terms = super::inputs::parts(x);
                let products = reference::linear(&head_weight, None, x);
                expected.extend(products.iter().map(|product| Expected {
                    value: product.value,
                    tolerance: 2e-6 * (product.magnitude + terms) + 1e-30,
                }));
            }
        }
        CaseStep::of_rows(rows, vec![x], vec![expected])
    };
    let op = HeadLinear::new(weight.clone(), heads).expect("the rows divide evenly among the heads");
    Case::new(format!("{heads} heads, {format} [{outputs}, {columns}]"), op, [1, 2, 9, 33].map(step).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::Solo;
    use crate::testing::{run, supported_kernels};

    proptest! {
        #[test]
        fn a_row_has_the_same_bits_alone_and_in_a_batch(rows in 2usize..20, heads in 1usize..5, quantised: bool, seed: u64) {
            let format = if quantised { Format::Q8_0 } else { Format::F32 };
            let (outputs, columns) = (20, 64);
            let width = heads * columns;
            let x = random::activations(rows * width, seed);
            for kernel in supported_kernels() {
                let mut op = HeadLinear::new(random::weight("w", format, heads * outputs, columns, seed), heads).unwrap();
                op.prepare_cpu(kernel, &Solo);
                let together = run(&op, kernel, rows, &[(&x, width)]).remove(0);
                for (row, x) in x.chunks_exact(width).enumerate() {
                    let alone = run(&op, kernel, 1, &[(x, width)]).remove(0);
                    prop_assert_eq!(&alone[..], &together[row * heads * outputs..][..heads * outputs], "{}", kernel);
                }
            }
        }
    }

    #[test]
    fn a_weight_whose_rows_do_not_divide_among_the_heads_is_refused() {
        let weight = random::weight("w", Format::F32, 10, 8, 1);
        assert!(HeadLinear::new(weight.clone(), 3).is_err());
        assert!(HeadLinear::new(weight, 5).unwrap().output_widths(&[8]).is_err());
    }
}
