//! A gate for each row, as shared experts have it.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row, scale_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[r, i] = x[r, i] / (1 + e^-gate[r])`: x and y [rows, width], gate [rows, 1].
///
/// Source: Yang et al. 2024, "Qwen2 Technical Report", the gate of the shared expert.
#[derive(Debug)]
pub struct GateRows;

impl Op for GateRows {
    fn name(&self) -> &'static str {
        "gate_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the gate", inputs[1], 1)?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, gates) = (args.inputs[0], args.inputs[1]);
        for_each_row(args, &|kernel, range, y| {
            let gate = gates[range.start / range.len().max(1)];
            scale_row(kernel, &x[range], 1.0 / (1.0 + exp(-gate)), y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::GateRows, args.elementwise(0, 0.0), args.outputs[0].width)]
    }
}

/// The expected results.
#[must_use]
pub fn cases() -> Vec<Case> {
    let step = |(rows, width): (usize, usize)| {
        let (x, gates) = (random::activations(rows * width, 1), random::activations(rows, 2));
        let gates: Vec<f32> = gates.iter().map(|gate| gate * 8.0).collect();
        let factor = |index: usize| 1.0 / (1.0 + (-f64::from(gates[index / width])).exp());
        let expected = x.iter().enumerate().map(|(index, x)| f64::from(*x) * factor(index));
        let expected = Expected::within(1e-6, expected);
        CaseStep::of_rows(rows, vec![x.clone(), gates.clone()], vec![expected])
    };
    vec![Case::new("of any shape", GateRows, CASE_SHAPES.map(step).into())]
}
