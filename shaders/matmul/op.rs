//! The Linear op: its shapes, its cost, and how its work is split into tasks.

use super::bfloat16::{self, RoundedRows};
use super::integer::activations::{self, Panels};
use super::integer::packed::PackedWeight;
use super::{Linear, MAX_WEIGHTS, TASK_OUTPUTS, Task, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, SharedMut, Team};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, InputObserver, MatrixInput, Op, ShapeError};
use crate::weight::Weight;

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

    fn multiplies(&self, _: usize) -> Option<Vec<&Weight>> {
        Some(self.weights())
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if kernel.is_integer() {
            self.packed = self.weights.iter().map(|weight| PackedWeight::new(weight, team)).collect();
        }
        for weight in &mut self.weights {
            if !is_packed(kernel, weight) && weight.gains_from_large_pages() {
                *weight = weight.in_large_pages(team);
            }
        }
    }

    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        is_packed(kernel, weight) || weight.gains_from_large_pages()
    }

    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        let overhead =
            |weight: &Weight| PackedWeight::size(weight).map_or(0, |size| size.saturating_sub(weight.byte_len()));
        if kernel.is_integer() { self.weights.iter().map(|weight| overhead(weight) as u64).sum() } else { 0 }
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        let (to_integers, to_bfloat16) = self.scratch_parts(kernel, rows);
        to_integers + to_bfloat16
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let mut cost = Cost { activation_bytes: args.activation_bytes(), ..Cost::default() };
        for weight in self.weights.iter().filter(|_| args.rows > 0) {
            let operations = 2 * (args.rows * weight.rows * weight.columns) as u64;
            if is_packed(args.kernel, weight) {
                cost.memory_bytes += PackedWeight::size(weight).unwrap_or(0) as u64;
                cost.integer_operations += operations;
            } else {
                cost.memory_bytes += weight.byte_len() as u64;
                cost.float_operations += operations;
            }
        }
        cost
    }

    fn run_observed(&self, args: &mut CpuArgs<'_>, observer: &mut dyn InputObserver) {
        let (columns, rows) = (self.weights[0].columns, args.inputs[0]);
        let mut tensors: Vec<&str> = self.weights.iter().map(Weight::tensor).collect();
        // Parts of one tensor have the same input.
        tensors.dedup();
        for tensor in tensors {
            observer.observe(MatrixInput { tensor, matrix: 0, matrices: 1, columns, rows });
        }
        self.run_cpu(args);
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let kernel = args.kernel;
        assert!(kernel.is_supported(), "this CPU does not support the {kernel} kernel");
        assert_eq!(args.outputs.len(), self.weights.len(), "one output for each weight");
        let (input, rows, columns) = (args.inputs[0], args.rows, self.weights[0].columns);
        assert_eq!(input.len(), rows * columns, "input of {:?} for {rows} rows", self.weights[0]);
        let (bits, team) = (args.activation_bits, args.team);
        let (to_integers, to_bfloat16) = args.scratch.split_at_mut(self.scratch_parts(kernel, rows).0);
        let panels =
            (!to_integers.is_empty()).then(|| Panels::round(kernel, bits, team, input, rows, columns, to_integers));
        let rounds = self.weights.iter().any(|weight| bfloat16::multiplies(kernel, bits, weight.format));
        let rounded = rounds.then(|| RoundedRows::round(team, input, columns, to_bfloat16));
        assert!(
            !kernel.is_integer() || self.packed.len() == self.weights.len(),
            "linear: weights are not prepared for the {kernel} kernel"
        );
        let mut outputs = args.outputs.iter_mut();
        let outputs: [Option<SharedMut<'_, f32>>; MAX_WEIGHTS] =
            std::array::from_fn(|_| outputs.next().map(|output| SharedMut::new(output)));

        // Tasks are numbered through all weights, so that the threads share them in one pass.
        let per_task = self.outputs_per_task(args.team.threads(), rows);
        let tasks = self.weights.iter().map(|weight| weight.rows.div_ceil(per_task)).sum();
        args.team.for_each(tasks, &|task| {
            let mut task = task;
            for (index, (weight, output)) in self.weights.iter().zip(outputs.iter().flatten()).enumerate() {
                let weight_tasks = weight.rows.div_ceil(per_task);
                if task < weight_tasks {
                    let packed = self.packed.get(index).and_then(Option::as_ref);
                    let task = Task {
                        weight,
                        factor: 1.0,
                        bias: self.biases[index].as_deref(),
                        outputs: task * per_task..weight.rows.min((task + 1) * per_task),
                        input,
                        integers: packed.zip(panels),
                        rounded: rounded.filter(|_| bfloat16::multiplies(kernel, bits, weight.format)),
                        rows,
                        tuning: args.tuning,
                        output,
                    };
                    // SAFETY: the CPU supports the kernel by the assertion above, and the tasks of a weight have disjoint outputs.
                    return unsafe { task.run(kernel) };
                }
                task -= weight_tasks;
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

/// Whether the weight is packed for the kernel.
fn is_packed(kernel: Kernel, weight: &Weight) -> bool {
    kernel.is_integer() && weight.format.integers().is_some()
}

impl Linear {
    /// Scratch memory for the input rounded to integers, and for the input rounded to BF16.
    fn scratch_parts(&self, kernel: Kernel, rows: usize) -> (usize, usize) {
        let columns = self.weights[0].columns;
        let any = |what: &dyn Fn(&Weight) -> bool| self.weights.iter().any(what);
        let integers = any(&|weight| is_packed(kernel, weight));
        let bfloat16 = any(&|weight| bfloat16::can_multiply(kernel, weight.format));
        (
            if integers { activations::scratch_len(rows, columns) } else { 0 },
            if bfloat16 { bfloat16::scratch_len(rows, columns) } else { 0 },
        )
    }

    /// Outputs of one task: a few tasks for each thread, so that other threads can compensate for a slow one, but not
    /// so small that scheduling a task costs more than computing it.
    fn outputs_per_task(&self, threads: usize, rows: usize) -> usize {
        const TASKS_PER_THREAD: usize = 8;
        const LEAST_VALUES: usize = 32 * 1024;
        let outputs: usize = self.weights.iter().map(|weight| weight.rows).sum();
        let fair = if threads == 1 { outputs } else { outputs.div_ceil(threads * TASKS_PER_THREAD) };
        // Up to this many rows the time is that of reading the weights; from there on it grows with the rows.
        const ROWS_WHILE_READ: usize = 16;
        let values_of_output = self.weights[0].columns.max(1) * rows.div_ceil(ROWS_WHILE_READ).max(1);
        let least = LEAST_VALUES.div_ceil(values_of_output);
        fair.max(least).next_multiple_of(TASK_OUTPUTS)
    }
}
