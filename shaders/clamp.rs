//! Values limited to a range around 0.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// `y[i] = min(max(x[i], -limit), limit)`, [rows, width].
#[derive(Debug)]
pub struct Clamp {
    limit: f32,
}

impl Clamp {
    /// Values up to this limit, which is above 0.
    #[must_use]
    pub fn new(limit: f32) -> Self {
        Clamp { limit }
    }
}

impl Op for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| clamp_row(kernel, &x[range], self.limit, y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Clamp, args.elementwise(0, self.limit), args.outputs[0].width)]
    }
}

per_kernel! {
    fn clamp_row = clamp_lanes(x: &[f32], limit: f32, y: &mut [f32])
}

#[inline(always)]
fn clamp_lanes<const FMA: bool>(x: &[f32], limit: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x.max(-limit).min(limit);
    }
}

/// The expected results: values inside, at and outside of the limit.
#[must_use]
pub fn cases() -> Vec<Case> {
    const LIMIT: f32 = 0.25;
    let step = |(rows, width): (usize, usize)| {
        let mut x = random::activations(rows * width, 1);
        x[0] = -LIMIT;
        let expected: Vec<f32> = x.iter().map(|x| x.clamp(-LIMIT, LIMIT)).collect();
        CaseStep::of_rows(rows, vec![x], vec![Expected::exactly(&expected)])
    };
    vec![Case::new("of any shape", Clamp::new(LIMIT), CASE_SHAPES.map(step).into())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_gives_the_nearest_value_within_the_limit(width in 1usize..50, limit in 0.01f32..2.0, seed: u64) {
            let x = values(seed, width);
            let expected: Vec<f32> = x.iter().map(|x| x.clamp(-limit, limit)).collect();
            for kernel in supported_kernels() {
                prop_assert_eq!(&run(&Clamp::new(limit), kernel, 1, &[(&x, width)])[0], &expected);
            }
        }
    }
}
