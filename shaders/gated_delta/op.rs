//! The gated delta rule: its shapes, its cost, and how it runs.

use super::{GatedDelta, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::recurrent::StateRun;

impl Op for GatedDelta {
    fn name(&self) -> &'static str {
        "gated_delta"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("gated_delta", what, found, expected);
        check("number of inputs", inputs.len(), 3)?;
        check("width of queries, keys and values", inputs[0], self.shape.mixed_width())?;
        check("width of the decay", inputs[1], self.dt_bias.len())?;
        check("width of beta", inputs[2], self.shape.value_heads)?;
        Ok(vec![self.shape.value_width()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, _: usize) -> usize {
        cpu::scratch_len(self, rows)
    }

    /// For each value of the state: a product for the decay, and three multiply-adds.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: StateRun::bytes(&args.batch, self.part),
            activation_bytes: args.activation_bytes(),
            float_operations: 7 * (args.rows * self.shape.value_width() * self.shape.key_dim) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::run(self, args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.a, &self.dt_bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![gpu::dispatch(self, args)]
    }
}
