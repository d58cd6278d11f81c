//! The op: its shapes, its cost, and how it runs.

use super::{SelectPositions, cpu, each_head, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};

impl Op for SelectPositions {
    fn name(&self) -> &'static str {
        "select_positions"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let n_inputs = if self.last_of_each_head().is_some() { 2 } else { 3 };
        ShapeError::check(self.name(), "number of inputs", inputs.len(), n_inputs)?;
        let expected = [
            ("width of the query", self.n_heads * self.key_dim),
            ("width of the key", self.key_dim),
            ("number of weights", self.n_heads),
        ];
        for ((what, expected), found) in expected.into_iter().zip(inputs) {
            ShapeError::check(self.name(), what, *found, expected)?;
        }
        Ok(vec![self.selection.width()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, context_tokens: usize) -> usize {
        match self.last_of_each_head() {
            Some(_) => each_head::scratch_len(self, rows, context_tokens),
            None => cpu::scratch_len(rows, context_tokens),
        }
    }

    /// A product for each head and position, or pool with a key of its own, of the rows that do not select all of them. Each index
    /// key is read once for all rows of a sequence.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let batch = &args.batch;
        let scored = |position: &u32| Some(*position as usize + 1).filter(|seen| self.selection.is_partial(*seen));
        let keys_per_pool = if self.last_of_each_head().is_some() { self.selection.pool } else { 1 };
        let of_pools = |seen: usize| seen / self.selection.pool * keys_per_pool;
        let scores: usize = batch.positions.iter().filter_map(scored).map(of_pools).sum();
        let starts: Vec<usize> = batch.run_starts().collect();
        let ends = starts.iter().skip(1).copied().chain([batch.sequences.len()]).filter(|end| *end > 0);
        let read: usize = ends.filter_map(|end| scored(&batch.positions[end - 1])).sum();
        Cost {
            memory_bytes: read as u64 * args.kv_position_bytes[self.layer].index,
            activation_bytes: args.activation_bytes(),
            float_operations: 2 * (scores * self.n_heads * (self.key_dim + 1)) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::store(self, args);
        match self.last_of_each_head() {
            Some(last) => each_head::select(self, last, args),
            None => cpu::select(self, args),
        }
    }

    fn gpu_scratch_bytes(&self, _: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
        gpu::scratch_bytes(self, rows, context_tokens)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::dispatches(self, args)
    }
}
