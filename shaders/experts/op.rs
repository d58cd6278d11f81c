//! The op of routed experts: its shapes, its cost, and how it runs.

use super::{ExpertMatrix, ExpertRows, Experts, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::lora::adapter::AdapterUse;
use crate::lora::target::Target;
use crate::op::{CpuArgs, InputObserver, Op, ShapeError};
use crate::weight::Weight;

impl Op for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.hidden_size())?;
        ShapeError::check(self.name(), "width of the routes", inputs[1], self.routes_width())?;
        Ok(vec![inputs[0]])
    }

    fn weights(&self) -> Vec<&Weight> {
        let mut weights: Vec<&Weight> = self.matrices().map(ExpertMatrix::tensor).collect();
        weights.dedup_by_key(|weight| &weight.name);
        weights
    }

    fn multiplies(&self, input: usize) -> Option<Vec<&Weight>> {
        let of_rows = || self.gate.iter().chain([&self.up]).map(ExpertMatrix::tensor).collect();
        (input == 0).then(of_rows)
    }

    fn adapter_targets(&self) -> &[Target] {
        &self.adapters
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        self.matrices_mut().for_each(|matrix| matrix.prepare_cpu(kernel, team));
    }

    fn repacks(&self, kernel: Kernel, weight: &Weight) -> bool {
        kernel.is_integer() && weight.format.integers().is_some() && !self.is_left_in_file()
    }

    fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        self.matrices().map(|matrix| matrix.repack_overhead_bytes(kernel)).sum()
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        cpu::scratch_len(self, kernel, rows)
    }

    /// The experts in use are not known before routing. The estimate assumes a uniform selection.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let share = self.expected_experts(args.rows) / self.n_experts() as f64;
        let mut cost = Cost { activation_bytes: args.activation_bytes(), ..Cost::default() };
        for matrix in self.matrices() {
            cost.memory_bytes += (share * matrix.bytes(args.kernel) as f64) as u64;
            let operations = 2 * (args.rows * self.top_k * matrix.outputs() * matrix.columns()) as u64;
            if self.repacks(args.kernel, matrix.tensor()) {
                cost.integer_operations += operations;
            } else {
                cost.float_operations += operations;
            }
        }
        cost
    }

    fn run_observed(&self, args: &mut CpuArgs<'_>, observer: &mut dyn InputObserver) {
        let adapters = adapters_of(args);
        let rows = ExpertRows { x: args.inputs[0], routes: args.inputs[1], rows: args.rows, adapters: &adapters };
        let settings = (args.kernel, args.activation_bits, args.tuning);
        self.compute_observed(settings, args.team, rows, (&mut *args.scratch, &mut *args.outputs[0]), Some(observer));
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let adapters = adapters_of(args);
        let rows = ExpertRows { x: args.inputs[0], routes: args.inputs[1], rows: args.rows, adapters: &adapters };
        self.compute((args.kernel, args.activation_bits, args.tuning), args.team, rows, args.scratch, args.outputs[0]);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        let mut tables: Vec<&[f32]> = self.matrices().filter_map(ExpertMatrix::table).collect();
        tables.dedup_by(|a, b| std::ptr::eq(*a, *b));
        tables
    }

    fn gpu_scratch_bytes(&self, device: &DeviceLimits, rows: usize, _: usize) -> u64 {
        gpu::scratch_bytes(self, device, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::experts(self, args)
    }
}

/// The adapter of each row, or none if no row has one.
fn adapters_of<'a>(args: &CpuArgs<'a>) -> Vec<Option<&'a AdapterUse>> {
    let rows = if args.batch.adapters.is_empty() { 0 } else { args.rows };
    (0..rows).map(|row| args.batch.adapter_of(row, rows)).collect()
}
