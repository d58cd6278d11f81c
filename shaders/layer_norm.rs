//! Layer norm.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::{multiply_add, sum, sum_of_squares};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Layer norm over groups of a row: `y[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * w[i] + b[i]`.
///
/// - x, y: [rows, n * weight.len()]; each group of `weight.len()` values is normalised by itself.
/// - The variance is the mean of the squared distances from the mean. `epsilon` is inside the root.
/// - Source: Ba, Kiros & Hinton 2016, "Layer Normalization".
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Arc<[f32]>,
    /// As long as the weight.
    bias: Arc<[f32]>,
    epsilon: f32,
}

impl LayerNorm {
    /// A norm with this weight and bias, both `[group]`.
    ///
    /// # Errors
    /// [`ShapeError`] when the bias has another length than the weight.
    pub fn new(weight: Arc<[f32]>, bias: Option<Arc<[f32]>>, epsilon: f32) -> Result<Self, ShapeError> {
        let bias = bias.unwrap_or_else(|| vec![0.0; weight.len()].into());
        ShapeError::check("layer_norm", "length of the bias", bias.len(), weight.len())?;
        Ok(LayerNorm { weight, bias, epsilon })
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        let remainder = inputs[0] % self.weight.len().max(1);
        ShapeError::check(self.name(), format!("width {} modulo the weight's length", inputs[0]), remainder, 0)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| norm_row(kernel, &x[range], &self.weight, &self.bias, self.epsilon, y));
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.weight, &self.bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (width, group) = (args.inputs[0].width, self.weight.len());
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.tables[1].address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(width)
            .size(group)
            .float(self.epsilon);
        let size = args.workgroup_size_for(group);
        let dispatch = args.each_column(Module::LayerNorm, push, width);
        let constants = vec![(0, size), (1, word(group).div_ceil(size))];
        vec![Dispatch { constants, groups: [word(width / group), dispatch.groups[1], 1], ..dispatch }]
    }
}

per_kernel! {
    /// Normalises every group of one row.
    fn norm_row = norm_row_lanes(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, y: &mut [f32])
}

#[inline(always)]
fn norm_row_lanes<const FMA: bool>(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, y: &mut [f32]) {
    for (x, y) in x.chunks_exact(weight.len()).zip(y.chunks_exact_mut(weight.len())) {
        let count = x.len() as f32;
        let mean = sum(x) / count;
        let squares = sum_of_squares::<FMA>(x, mean);
        let scale = 1.0 / (squares / count + epsilon).sqrt();
        for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
            *y = multiply_add::<FMA>((x - mean) * scale, *weight, *bias);
        }
    }
}

/// The formula in float64.
#[must_use]
pub fn reference(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> Vec<f64> {
    let normalised = |group: &[f32]| {
        let count = group.len() as f64;
        let mean = group.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = group.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let scaled = group.iter().map(|x| (f64::from(*x) - mean) * scale);
        let of_weights = scaled.zip(weight).map(|(x, weight)| x * f64::from(*weight));
        of_weights.zip(bias).map(|(x, bias)| x + f64::from(*bias)).collect::<Vec<f64>>()
    };
    x.chunks_exact(weight.len()).flat_map(normalised).collect()
}

/// The expected results: whole rows and heads, widths that fill no vector, one row to many, with and without a bias.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(groups, group, has_bias): (usize, usize, bool)| {
        let weight: Arc<[f32]> = random::activations(group, 1).into();
        let bias: Option<Arc<[f32]>> = has_bias.then(|| random::activations(group, 2).into());
        let added = bias.clone().unwrap_or_else(|| vec![0.0; group].into());
        let step = |rows: usize| {
            let x: Vec<f32> = random::activations(rows * groups * group, rows as u64).iter().map(|x| x + 0.5).collect();
            let expected = Expected::within(1e-5, reference(&x, &weight, &added, 1e-3));
            CaseStep::of_rows(rows, vec![x], vec![expected])
        };
        let steps = vec![step(1), step(3), step(64), step(5).of_selected()];
        let norm = LayerNorm::new(Arc::clone(&weight), bias, 1e-3).expect("the bias has the length of the weight");
        Case::new(format!("{groups} groups of {group}, bias: {has_bias}"), norm, steps)
    };
    [(1, 576, true), (1, 1, true), (1, 77, false), (9, 64, false), (3, 5, true), (1, 4096, true)].map(case).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..5, groups in 1usize..4, group in 1usize..80, seed: u64) {
            let width = groups * group;
            let x = values(seed, rows * width);
            let [weight, bias] = [1, 2].map(|change| Arc::<[f32]>::from(values(seed ^ change, group)));
            let expected = reference(&x, &weight, &bias, 1e-2);
            let norm = LayerNorm::new(weight, Some(bias), 1e-2).unwrap();
            for kernel in supported_kernels() {
                assert_close(&run(&norm, kernel, rows, &[(&x, width)])[0], &expected, 5e-6);
            }
        }
    }

    #[test]
    fn a_bias_of_another_length_is_refused() {
        let error = LayerNorm::new(vec![1.0; 4].into(), Some(vec![0.0; 3].into()), 1e-5).unwrap_err();
        assert_eq!(error.to_string(), "layer_norm: length of the bias is 3, but must be 4");
    }
}
