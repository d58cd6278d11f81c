//! Gates that several values of a row share: one for the row, as shared experts have it, or one for each head.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::glu::{Activation, gate_run};
use crate::gpu::{Dispatch, GpuArgs, Module, word};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[r, i] = activation(gate[r, i / run], x[r, i])`: x and y [rows, width], gate [rows, width / run].
///
/// Source: Yang et al. 2024, "Qwen2 Technical Report", the gate of the shared expert.
#[derive(Debug)]
pub struct GateRows {
    activation: Activation,
}

impl GateRows {
    /// Gates with this activation.
    #[must_use]
    pub fn new(activation: Activation) -> Self {
        GateRows { activation }
    }
}

impl Op for GateRows {
    fn name(&self) -> &'static str {
        "gate_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        let remainder = inputs[0] % inputs[1].max(1);
        ShapeError::check(self.name(), format!("width {} modulo {} gates", inputs[0], inputs[1]), remainder, 0)?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, gates) = (args.inputs[0], args.inputs[1]);
        let run = x.len() / gates.len().max(1);
        for_each_row(args, &|kernel, range, y| {
            let gates = &gates[range.start / run.max(1)..];
            for ((y, x), gate) in y.chunks_mut(run).zip(x[range].chunks(run)).zip(gates) {
                gate_run(kernel, self.activation, *gate, x, y);
            }
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = args.elementwise(self.activation.variant(), 0.0);
        let mut dispatch = args.each_column(Module::GateRows, push, args.outputs[0].width);
        dispatch.constants.push((1, word(args.inputs[1].width)));
        vec![dispatch]
    }
}

/// The expected results: one gate for a row, one for each value, and numbers between.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(activation, gates): (Activation, usize)| {
        let step = |(rows, run): (usize, usize)| {
            let x = random::activations(rows * run * gates, 1);
            let gate: Vec<f32> = random::activations(rows * gates, 2).iter().map(|gate| gate * 8.0).collect();
            let value = |(index, x): (usize, &f32)| activation.reference(f64::from(gate[index / run]), f64::from(*x));
            let expected = Expected::within(2e-6, x.iter().enumerate().map(value));
            CaseStep::of_rows(rows, vec![x.clone(), gate.clone()], vec![expected])
        };
        Case::new(format!("{activation:?}, {gates} gates"), GateRows::new(activation), CASE_SHAPES.map(step).into())
    };
    [(Activation::Sigmoid, 1), (Activation::Sigmoid, 5), (Activation::Softplus, 3)].map(case).into()
}
