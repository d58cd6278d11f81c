//! The selective scan: its shapes, its cost, and how it runs.

use super::{SelectiveScan, cpu, gpu};
use crate::cost::{Cost, CostArgs};
use crate::cpu::Kernel;
use crate::gpu::{Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::recurrent::StateRun;

impl Op for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective_scan"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("selective_scan", what, found, expected);
        check("number of inputs", inputs.len(), 4)?;
        check("width of x", inputs[0], self.shape.channels)?;
        check("width of dt", inputs[1], self.shape.channels)?;
        check("width of B", inputs[2], self.shape.state_dim)?;
        check("width of C", inputs[3], self.shape.state_dim)?;
        Ok(vec![self.shape.channels])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn scratch_len(&self, _: Kernel, rows: usize, _: usize) -> usize {
        cpu::scratch_len(self, rows)
    }

    /// For each value of the state: a product for the exponent, one for the decay, and two multiply-adds.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: StateRun::bytes(&args.batch, self.part),
            activation_bytes: args.activation_bytes(),
            float_operations: 6 * (args.rows * self.shape.channels * self.shape.state_dim) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        cpu::run(self, args);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.a, &self.d]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![gpu::dispatch(self, args)]
    }
}
