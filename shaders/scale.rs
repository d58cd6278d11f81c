//! All values times one factor.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row, scale_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[i] = factor * x[i]`, [rows, width].
#[derive(Debug)]
pub struct Scale {
    factor: f32,
}

impl Scale {
    /// Scales by this factor.
    #[must_use]
    pub fn new(factor: f32) -> Self {
        Scale { factor }
    }
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| scale_row(kernel, &x[range], self.factor, y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Scale, args.elementwise(0, self.factor), args.outputs[0].width)]
    }
}

/// The expected results.
#[must_use]
pub fn cases() -> Vec<Case> {
    const FACTOR: f32 = 0.3;
    let step = |(rows, width): (usize, usize)| {
        let x = random::activations(rows * width, 1);
        let expected = Expected::within(1e-6, x.iter().map(|x| f64::from(FACTOR) * f64::from(*x)));
        CaseStep::of_rows(rows, vec![x.clone()], vec![expected])
    };
    vec![Case::new("of any shape", Scale::new(FACTOR), CASE_SHAPES.map(step).into())]
}
