//! Values limited to a range.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// `y[i] = min(max(x[i], least), most)`, [rows, width].
#[derive(Debug)]
pub struct Clamp {
    least: f32,
    most: f32,
}

impl Clamp {
    /// Values up to this magnitude, which is above 0.
    #[must_use]
    pub fn new(limit: f32) -> Self {
        Clamp { least: -limit, most: limit }
    }

    /// Values from `least` to `most`, which may be infinite.
    ///
    /// # Errors
    /// [`ShapeError`] when no value is within them.
    pub fn within([least, most]: [f32; 2]) -> Result<Self, ShapeError> {
        if least <= most {
            Ok(Clamp { least, most })
        } else {
            let what = format!("number of values from {least} to {most}");
            Err(ShapeError::Mismatch { op: "clamp", what, found: 0, expected: "above 0".into() })
        }
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
        for_each_row(args, &|kernel, range, y| clamp_row(kernel, &x[range], [self.least, self.most], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Clamp, args.elementwise(self.least.to_bits(), self.most), args.outputs[0].width)]
    }
}

per_kernel! {
    fn clamp_row = clamp_lanes(x: &[f32], range: [f32; 2], y: &mut [f32])
}

#[inline(always)]
fn clamp_lanes<const FMA: bool>(x: &[f32], [least, most]: [f32; 2], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x.max(least).min(most);
    }
}

/// The expected results: values inside, at and outside of the limits, which are around 0, on one side of it, or infinite.
#[must_use]
pub fn cases() -> Vec<Case> {
    const RANGES: [[f32; 2]; 4] = [[-0.25, 0.25], [-0.1, 0.5], [0.125, 0.25], [f32::NEG_INFINITY, 0.25]];
    let of_range = |[least, most]: [f32; 2]| {
        let step = |(rows, width): (usize, usize)| {
            let mut x = random::activations(rows * width, 1);
            x[0] = most;
            let expected: Vec<f32> = x.iter().map(|x| x.clamp(least, most)).collect();
            CaseStep::of_rows(rows, vec![x], vec![Expected::exactly(&expected)])
        };
        Case::new(format!("{least} to {most}"), Clamp { least, most }, CASE_SHAPES.map(step).into())
    };
    RANGES.map(of_range).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_gives_the_nearest_value_within_the_limits(
            width in 1usize..50, least in -2.0f32..1.0, length in 0.0f32..2.0, seed: u64,
        ) {
            let (x, range) = (values(seed, width), [least, least + length]);
            let expected: Vec<f32> = x.iter().map(|x| x.clamp(range[0], range[1])).collect();
            for kernel in supported_kernels() {
                prop_assert_eq!(&run(&Clamp::within(range).unwrap(), kernel, 1, &[(&x, width)])[0], &expected);
            }
        }
    }

    #[test]
    fn limits_that_no_value_is_within_are_refused() {
        let error = |range| Clamp::within(range).unwrap_err().to_string();
        assert_eq!(error([1.0, 0.5]), "clamp: number of values from 1 to 0.5 is 0, but must be above 0");
        assert_eq!(error([f32::NAN, 0.5]), "clamp: number of values from NaN to 0.5 is 0, but must be above 0");
    }
}
