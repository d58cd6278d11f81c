//! Root-mean-square norm.

use std::sync::Arc;

use crate::add::Add;
use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::fusion::FusesWith;
use crate::gpu::{DeviceValue, Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::{LANES, horizontal_sum, multiply_add};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Root-mean-square norm over groups of a row: `y[i] = x[i] * w[i] / sqrt(mean_i(x[i]^2) + eps)`.
///
/// - x, y: [rows, n * group]; each group of values is normalised by itself. The residual stream has one group per row, a
///   query or key has one group per head.
/// - w: [k * group]; the groups of a row use its k parts in turn. Mostly there is one part.
/// - `epsilon` is inside the root.
/// - Source: Zhang & Sennrich 2019, equation 4.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Arc<[f32]>,
    group: usize,
    epsilon: f32,
}

impl RmsNorm {
    /// A norm with this weight, `[group]`.
    #[must_use]
    pub fn new(weight: Arc<[f32]>, epsilon: f32) -> Self {
        RmsNorm { group: weight.len(), weight, epsilon }
    }

    /// A norm whose groups have weights of their own, `[groups * group]`.
    ///
    /// # Errors
    /// [`ShapeError`] when the weight is no whole number of groups.
    pub fn of_groups(weight: Arc<[f32]>, group: usize, epsilon: f32) -> Result<Self, ShapeError> {
        let remainder = weight.len() % group.max(1);
        ShapeError::check("rms_norm", format!("length {} of the weight modulo the group", weight.len()), remainder, 0)?;
        Ok(RmsNorm { weight, group, epsilon })
    }
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        let remainder = inputs[0] % self.weight.len().max(1);
        ShapeError::check(self.name(), format!("width {} modulo the weight's length", inputs[0]), remainder, 0)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| norm_row(kernel, &x[range], &self.weight, self.group, self.epsilon, y));
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.weight]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![self.dispatch(args)]
    }
}

impl RmsNorm {
    /// Normalises the input, or the sum of two inputs, which is then the first of two outputs.
    fn dispatch(&self, args: &GpuArgs<'_>) -> Dispatch {
        let address = |value: Option<&DeviceValue>| value.map_or(0, |value| value.region.address);
        let (sum, normalised) = match args.outputs {
            [sum, normalised] => (Some(sum), Some(normalised)),
            outputs => (None, outputs.first()),
        };
        let (width, group) = (args.inputs[0].width, self.group);
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(address(args.inputs.get(1)))
            .address(address(sum))
            .address(args.tables[0].address)
            .address(address(normalised))
            .address(args.step)
            .word(args.rows.kind())
            .size(width)
            .size(group)
            .size(self.weight.len())
            .float(self.epsilon);
        let size = args.workgroup_size_for(group);
        let dispatch = args.each_column(Module::RmsNorm, push, width);
        let constants = vec![(0, size), (1, u32::from(sum.is_some())), (2, word(group).div_ceil(size))];
        Dispatch { constants, groups: [word(width / group), dispatch.groups[1], 1], ..dispatch }
    }
}

/// The residual stream and its norm, which the next half of a layer reads.
impl FusesWith<RmsNorm> for Add {
    const NAME: &'static str = "add_norm";
    const INPUTS: usize = 2;
    const GIVES_BETWEEN: bool = true;

    fn dispatches_with(&self, norm: &RmsNorm, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![norm.dispatch(args)]
    }
}

per_kernel! {
    /// Normalises every group of one row.
    fn norm_row = norm_row_lanes(x: &[f32], weight: &[f32], group: usize, epsilon: f32, y: &mut [f32])
}

#[inline(always)]
fn norm_row_lanes<const FMA: bool>(x: &[f32], weight: &[f32], group: usize, epsilon: f32, y: &mut [f32]) {
    let weights = weight.chunks_exact(group).cycle();
    for ((x, y), weight) in x.chunks_exact(group).zip(y.chunks_exact_mut(group)).zip(weights) {
        let mut squares = [0.0f32; LANES];
        let mut chunks = x.chunks_exact(LANES);
        for chunk in chunks.by_ref() {
            for lane in 0..LANES {
                squares[lane] = multiply_add::<FMA>(chunk[lane], chunk[lane], squares[lane]);
            }
        }
        for (lane, value) in chunks.remainder().iter().enumerate() {
            squares[lane] = multiply_add::<FMA>(*value, *value, squares[lane]);
        }
        let scale = 1.0 / (horizontal_sum(squares) / x.len() as f32 + epsilon).sqrt();
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * weight;
        }
    }
}

/// The formula in float64.
#[must_use]
pub fn reference(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    x.chunks_exact(weight.len())
        .flat_map(|group| {
            let mean = group.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / group.len() as f64;
            let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
            group.iter().zip(weight).map(move |(x, w)| f64::from(*x) * scale * f64::from(*w))
        })
        .collect()
}

/// The expected results: whole rows and heads, widths that fill no vector, one row to many.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(groups, group): (usize, usize)| {
        let weight: Arc<[f32]> = random::activations(group, 1).into();
        let step = |rows: usize| {
            let x = random::activations(rows * groups * group, rows as u64);
            let expected = Expected::within(4e-6, reference(&x, &weight, 1e-5));
            CaseStep::of_rows(rows, vec![x], vec![expected])
        };
        let steps = vec![step(1), step(3), step(64), step(5).of_selected()];
        Case::new(format!("{groups} groups of {group}"), RmsNorm::new(Arc::clone(&weight), 1e-5), steps)
    };
    [(1, 576), (1, 1), (1, 77), (9, 64), (3, 5), (2, 1000), (1, 4096)]
        .map(case)
        .into_iter()
        .chain([of_groups()])
        .collect()
}

/// Groups with weights of their own.
fn of_groups() -> Case {
    const GROUP: usize = 40;
    let weight: Arc<[f32]> = random::activations(2 * GROUP, 1).into();
    let x = random::activations(3 * 4 * GROUP, 2);
    let groups = x.chunks_exact(GROUP).zip(weight.chunks_exact(GROUP).cycle());
    let expected = groups.flat_map(|(x, weight)| reference(x, weight, 1e-5)).collect::<Vec<_>>();
    let step = CaseStep::of_rows(3, vec![x], vec![Expected::within(4e-6, expected)]);
    let norm = RmsNorm::of_groups(weight, GROUP, 1e-5).expect("two groups");
    Case::new("two groups with weights of their own", norm, vec![step])
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
            let weight: Arc<[f32]> = values(seed ^ 1, group).into();
            let expected = reference(&x, &weight, 1e-5);
            for kernel in supported_kernels() {
                let outputs = run(&RmsNorm::new(weight.clone(), 1e-5), kernel, rows, &[(&x, width)]);
                assert_close(&outputs[0], &expected, 2e-6);
            }
        }
    }

    #[test]
    fn a_width_that_is_not_whole_groups_is_refused() {
        let norm = RmsNorm::new(vec![1.0; 64].into(), 1e-5);
        assert_eq!(
            norm.output_widths(&[100]).unwrap_err().to_string(),
            "rms_norm: width 100 modulo the weight's length is 36, but must be 0"
        );
    }
}
