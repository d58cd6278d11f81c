//! The state space: its shapes, its cost, and how it runs.

use super::{StateSpace, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::recurrent::StateRun;

impl Op for StateSpace {
    fn name(&self) -> &'static str {
        "state_space"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("state_space", what, found, expected);
        check("number of inputs", inputs.len(), 2)?;
        check("width of x, B and C", inputs[0], self.shape.mixed_width())?;
        check("width of dt", inputs[1], self.shape.heads)?;
        Ok(vec![self.shape.width()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, _: usize) -> usize {
        cpu::scratch_len(self, rows)
    }

    /// For each value of the state: a product for the decay, and two multiply-adds.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: StateRun::bytes(&args.batch, self.part),
            activation_bytes: args.activation_bytes(),
            float_operations: 5 * (args.rows * self.shape.width() * self.shape.state_dim) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::run(self, args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.weights.a, &self.weights.d, &self.weights.dt_bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![gpu::dispatch(self, args)]
    }
}
