//! Depthwise causal convolution.

use crate::cases::{Case, CaseCache};
use crate::cost::{Cost, CostArgs};
use crate::cpu::SharedMut;
use crate::glu::Activation;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::multiply_add;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;
use crate::recurrent::scenario::{self, Inputs};
use crate::recurrent::{PastRows, StatePart, StateRun, TASK_CHANNELS};

/// Depthwise causal convolution over the rows of a sequence:
/// `y[t, c] = f(bias[c] + sum_j weight[c, j] x[t - width + 1 + j, c])`, with f the identity or SiLU.
///
/// With a dilation of d, `y[t, c] = f(sum_j weight[c, j] x[t - (width - 1 - j) d, c])`.
///
/// - x, y: [rows, channels]. Rows before the start of a sequence are 0.
/// - State: the last `(width - 1) d` rows of x, oldest first: [(width - 1) d, channels].
/// - Source: Gu & Dao 2023, "Mamba".
#[derive(Debug, Clone)]
pub struct CausalConv {
    /// `[width, channels]`
    weight: Vec<f32>,
    /// `[channels]`
    bias: Vec<f32>,
    activates: bool,
    dilation: usize,
    part: StatePart,
}

impl CausalConv {
    /// A convolution with this weight, `[channels, width]`, and the state at `part`. `bias` is `[channels]`.
    ///
    /// # Errors
    /// [`ShapeError`] when weight, bias and state do not fit one another.
    pub fn new(weight: &[f32], width: usize, bias: Option<&[f32]>, part: StatePart) -> Result<Self, ShapeError> {
        let channels = weight.len() / width.max(1);
        ShapeError::check("causal_conv", "length of the weight", weight.len(), channels * width)?;
        ShapeError::check("causal_conv", "values of state", part.len, CausalConv::state_len(channels, width))?;
        let bias = bias.map_or_else(|| vec![0.0; channels], <[f32]>::to_vec);
        ShapeError::check("causal_conv", "length of the bias", bias.len(), channels)?;
        let transposed = (0..width).flat_map(|tap| (0..channels).map(move |channel| weight[channel * width + tap]));
        Ok(CausalConv { weight: transposed.collect(), bias, activates: false, dilation: 1, part })
    }

    /// A convolution without bias over every `dilation`-th row, with this weight, `[channels, width]`.
    ///
    /// # Errors
    /// As [`CausalConv::new`].
    pub fn dilated(weight: &[f32], (width, dilation): (usize, usize), part: StatePart) -> Result<Self, ShapeError> {
        let spanned = CausalConv::spanned((width, dilation));
        let mut spread = vec![0.0; weight.len() / width.max(1) * spanned];
        // The weights of the rows between are 0.
        for (spread, weight) in spread.chunks_exact_mut(spanned.max(1)).zip(weight.chunks_exact(width.max(1))) {
            spread.iter_mut().step_by(dilation.max(1)).zip(weight).for_each(|(spread, weight)| *spread = *weight);
        }
        Ok(CausalConv { dilation, ..CausalConv::new(&spread, spanned, None, part)? })
    }

    /// The rows from the first to the last of `width` rows at a distance of `dilation` from one another.
    #[must_use]
    pub fn spanned((width, dilation): (usize, usize)) -> usize {
        width.saturating_sub(1) * dilation + 1
    }

    /// The same with SiLU, `x / (1 + e^-x)`, after the sum.
    #[must_use]
    pub fn with_silu(self) -> Self {
        CausalConv { activates: true, ..self }
    }

    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(channels: usize, width: usize) -> usize {
        channels * width.saturating_sub(1)
    }

    fn channels(&self) -> usize {
        self.bias.len()
    }

    fn width(&self) -> usize {
        self.weight.len() / self.channels().max(1)
    }
}

impl Op for CausalConv {
    fn name(&self) -> &'static str {
        if self.dilation == 1 { "causal_conv" } else { "dilated_conv" }
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.channels())?;
        Ok(inputs.to_vec())
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: StateRun::bytes(&args.batch, self.part),
            activation_bytes: args.activation_bytes(),
            float_operations: 2 * (args.output_values() * self.width()) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let runs = StateRun::all(&args.batch);
        let blocks = self.channels().div_ceil(TASK_CHANNELS);
        let y = SharedMut::new(&mut *args.outputs[0]);
        let (kernel, x, states) = (args.kernel, args.inputs[0], args.states);
        args.team.for_each(runs.len() * blocks, &|task| {
            let run = &runs[task / blocks];
            let start = task % blocks * TASK_CHANNELS;
            let columns = start..self.channels().min(start + TASK_CHANNELS);
            let (stored, channels) = (self.width() - 1, self.channels());
            let inputs = PastRows { run, x, states, part: self.part, columns, stored, channels };
            let task = Task { conv: self, run, inputs };
            convolve(kernel, &task, &y);
            task.inputs.store();
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.weight, &self.bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let state = args.states.of(self.part);
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.tables[1].address)
            .address(args.outputs[0].region.address)
            .address(state.address)
            .address(args.step)
            .size(self.channels())
            .size(args.states.slot_len(self.part));
        // One invocation for each channel of each run of rows.
        let mut dispatch = args.each_column(Module::CausalConv, push, self.channels());
        dispatch.groups[1] = word(args.sequences);
        dispatch.constants.extend([(1, word(self.width())), (2, u32::from(self.activates))]);
        dispatch.reads.push(state);
        dispatch.writes.push(state);
        vec![dispatch]
    }
}

/// Some channels of a run of rows.
struct Task<'a> {
    conv: &'a CausalConv,
    run: &'a StateRun<'a>,
    inputs: PastRows<'a>,
}

per_kernel! {
    /// The outputs of a task.
    fn convolve = convolve_lanes(task: &Task<'_>, y: &SharedMut<'_, f32>)
}

#[inline(always)]
fn convolve_lanes<const FMA: bool>(task: &Task<'_>, y: &SharedMut<'_, f32>) {
    let (conv, columns, channels) = (task.conv, &task.inputs.columns, task.conv.channels());
    for row in 0..task.run.rows {
        // SAFETY: each task writes its own channels of its own rows.
        let y = unsafe { y.slice((task.run.first + row) * channels + columns.start, columns.len()) };
        y.copy_from_slice(&conv.bias[columns.clone()]);
        for (tap, weight) in conv.weight.chunks_exact(channels).enumerate() {
            let pairs = task.inputs.get(row + tap).iter().zip(&weight[columns.clone()]);
            y.iter_mut().zip(pairs).for_each(|(y, (x, weight))| *y = multiply_add::<FMA>(*x, *weight, *y));
        }
        if conv.activates {
            y.iter_mut().for_each(|y| *y = Activation::Silu.apply(*y, 1.0));
        }
    }
}

/// One row in float64: `past` is the state, which the row replaces with the one after it.
pub fn reference(weight: &[f32], bias: &[f32], activates: bool, past: &mut Vec<f64>, x: &[f32]) -> Vec<f64> {
    past.extend(x.iter().map(|x| f64::from(*x)));
    let (channels, width) = (x.len(), weight.len() / x.len());
    let sum = |channel: usize| {
        let taps = (0..width).map(|tap| f64::from(weight[channel * width + tap]) * past[tap * channels + channel]);
        f64::from(bias[channel]) + taps.sum::<f64>()
    };
    let y = (0..channels).map(sum).map(|y| if activates { Activation::Silu.reference(y, 1.0) } else { y }).collect();
    past.drain(..channels);
    y
}

/// The expected results: widths of models, with and without bias and SiLU, channels that fill no vector or task.
#[must_use]
pub fn cases() -> Vec<Case> {
    let plain = [(256, 4, true), (77, 4, false), (300, 3, false), (5, 7, true), (16, 1, true)].map(case);
    plain.into_iter().chain([(40, (4, 3)), (130, (2, 5))].map(dilated_case)).collect()
}

fn dilated_case((channels, (width, dilation)): (usize, (usize, usize))) -> Case {
    let weight = random::activations(channels * width, 1);
    let spanned = CausalConv::spanned((width, dilation));
    let len = CausalConv::state_len(channels, spanned);
    let part = StatePart { layer: 1, start: 3, len };
    let conv = CausalConv::dilated(&weight, (width, dilation), part).expect("the shapes fit");
    let steps = scenario::steps(len, &Inputs::random(&[channels]), 2e-6, |past, inputs| {
        past.extend(inputs[0].iter().map(|x| f64::from(*x)));
        let sum = |channel: usize| {
            let tap = |tap: usize| f64::from(weight[channel * width + tap]) * past[tap * dilation * channels + channel];
            (0..width).map(tap).sum::<f64>()
        };
        let y = (0..channels).map(|channel| Activation::Silu.reference(sum(channel), 1.0)).collect();
        past.drain(..channels);
        y
    });
    let cache = CaseCache::of_states(vec![2, len + 4], scenario::SLOTS);
    let name = format!("{channels} channels, {width} rows at a distance of {dilation}");
    Case { name, op: Box::new(conv.with_silu()), cache: Some(cache), steps }
}

fn case((channels, width, activates): (usize, usize, bool)) -> Case {
    let weight = random::activations(channels * width, 1);
    let bias = if activates { vec![0.0; channels] } else { random::activations(channels, 2) };
    let len = CausalConv::state_len(channels, width);
    let part = StatePart { layer: 1, start: 3, len };
    let conv = CausalConv::new(&weight, width, (!activates).then_some(&bias), part).expect("the shapes fit");
    let steps = scenario::steps(len, &Inputs::random(&[channels]), 2e-6, |past, inputs| {
        reference(&weight, &bias, activates, past, inputs[0])
    });
    let cache = CaseCache::of_states(vec![2, len + 4], scenario::SLOTS);
    let op: Box<dyn Op> = Box::new(if activates { conv.with_silu() } else { conv });
    Case { name: format!("{channels} channels, width {width}"), op, cache: Some(cache), steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        for (channels, width) in [(200, 4), (33, 7), (40, 1)] {
            let weight = random::activations(channels * width, 1);
            let part = StatePart { layer: 0, start: 0, len: CausalConv::state_len(channels, width) };
            let conv = CausalConv::new(&weight, width, None, part).expect("the shapes fit").with_silu();
            scenario::assert_invariant(&conv, part.len, &Inputs::random(&[channels]));
        }
    }

    #[test]
    fn a_state_of_another_size_is_refused() {
        let part = StatePart { layer: 0, start: 0, len: 5 };
        let error = CausalConv::new(&[0.0; 8], 4, None, part).expect_err("six values are needed");
        assert_eq!(error.to_string(), "causal_conv: values of state is 5, but must be 6");
    }
}
