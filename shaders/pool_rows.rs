//! Weighted means of the rows of pools: the keys with which an indexer selects pools, and the entries to which rows attend.

use std::ops::Range;
use std::sync::Arc;

use crate::cases::{Case, CaseCache};
use crate::cost::{Cost, CostArgs};
use crate::cpu::SharedMut;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::{exp, multiply_add};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;
use crate::recurrent::scenario::{self, Inputs};
use crate::recurrent::{NO_SLOT, StateCache, StatePart, StateRun, TASK_CHANNELS};

/// The weighted mean of the rows of a pool up to each row. A pool has `pool` rows at adjacent positions, of which the first is a
/// multiple of `pool`. For a row at position `p` with `m = p mod pool`, and `x[0] .. x[m]` the rows of its pool up to it:
/// `y[c] = sum_j w[j, c] x[j, c]`, where `w[., c]` is the softmax of `gate[j, c] + bias[j, c]` over j.
///
/// With overlap, the first half of a row counts for the pool after its own, and the second half for its own. The sum and the softmax
/// are then over the first halves of all rows of the pool before, if there is one, and the second halves of the rows of the own pool.
///
/// - x, gate: [rows, channels], with overlap twice as wide; y: [rows, channels]
/// - bias: [pool, width of x]
/// - State: of the own pool, with overlap then of the pool after and of the pool before, the largest logit, the sum of the weights
///   and of the weighted values: [1 or 3, 3, channels].
/// - The softmax is computed online in the order of positions. So the result does not depend on the chunks of the prompt.
/// - Source: GLM-5 Team 2026, "GLM-5.3-Flash" and its reference code; DeepSeek-AI 2026, "DeepSeek-V4", 2.3 (overlap). The mean of a
///   whole pool is that of its last row.
#[derive(Debug, Clone)]
pub struct PoolRows {
    bias: Arc<[f32]>,
    pool: usize,
    overlap: Overlap,
    part: StatePart,
}

/// Which rows count for a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Its own.
    None,
    /// Its own, and those of the pool before.
    PoolBefore,
}

impl Overlap {
    /// Values of a row for each channel.
    #[must_use]
    pub fn parts(self) -> usize {
        match self {
            Overlap::None => 1,
            Overlap::PoolBefore => 2,
        }
    }

    /// The sums of a channel: of the own pool, of the one after and of the one before.
    fn sums(self) -> usize {
        match self {
            Overlap::None => 1,
            Overlap::PoolBefore => 3,
        }
    }
}

/// The values of an online softmax: the largest logit, the sum of the weights, the weighted sum.
const OF_SUM: usize = 3;

/// The index of the sum of the own pool, of the one after and of the one before.
const OWN: usize = 0;
const AFTER: usize = 1;
const BEFORE: usize = 2;

impl PoolRows {
    /// The means of pools with this bias, and the state at `part`.
    ///
    /// # Errors
    /// [`ShapeError`] when bias and state do not fit one another.
    pub fn new(bias: Arc<[f32]>, (pool, overlap): (usize, Overlap), part: StatePart) -> Result<Self, ShapeError> {
        let channels = bias.len() / (pool * overlap.parts()).max(1);
        ShapeError::check("pool_rows", "length of the bias", bias.len(), channels * pool * overlap.parts())?;
        ShapeError::check("pool_rows", "values of state", part.len, PoolRows::state_len(channels, overlap))?;
        Ok(PoolRows { bias, pool, overlap, part })
    }

    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(channels: usize, overlap: Overlap) -> usize {
        OF_SUM * overlap.sums() * channels
    }

    /// Values of a row of the input.
    fn width(&self) -> usize {
        self.bias.len() / self.pool
    }

    fn channels(&self) -> usize {
        self.width() / self.overlap.parts()
    }
}

impl Op for PoolRows {
    fn name(&self) -> &'static str {
        "pool_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        for input in inputs {
            ShapeError::check(self.name(), "width of an input", *input, self.width())?;
        }
        Ok(vec![self.channels()])
    }

    fn state_layer(&self) -> Option<usize> {
        Some(self.part.layer)
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        Cost {
            memory_bytes: StateRun::bytes(&args.batch, self.part),
            activation_bytes: args.activation_bytes(),
            // Two exponential functions of each value, which count as much as the rest.
            float_operations: 8 * (args.output_values() * self.overlap.parts()) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let runs = StateRun::all(&args.batch);
        let channels = self.channels();
        let blocks = channels.div_ceil(TASK_CHANNELS);
        let y = SharedMut::new(&mut *args.outputs[0]);
        let (kernel, inputs, states, positions) = (args.kernel, args.inputs, args.states, args.batch.positions);
        args.team.for_each(runs.len() * blocks, &|task| {
            let run = &runs[task / blocks];
            let start = task % blocks * TASK_CHANNELS;
            let columns = start..channels.min(start + TASK_CHANNELS);
            let task = Task { op: self, x: inputs[0], gate: inputs[1], run, positions, states, columns };
            means(kernel, &task, &y);
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let state = args.states.of(self.part);
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.inputs[1].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(state.address)
            .address(args.step)
            .size(self.channels())
            .size(self.pool)
            .size(args.states.slot_len(self.part));
        // One invocation for each channel of each run of rows.
        let mut dispatch = args.each_column(Module::PoolRows, push, self.channels());
        dispatch.groups[1] = word(args.sequences);
        dispatch.constants.push((1, u32::from(self.overlap == Overlap::PoolBefore)));
        dispatch.reads.push(state);
        dispatch.writes.push(state);
        vec![dispatch]
    }
}

/// Some channels of a run of rows.
struct Task<'a> {
    op: &'a PoolRows,
    /// Of all rows of the step, as `gate` and `positions`.
    x: &'a [f32],
    gate: &'a [f32],
    positions: &'a [u32],
    run: &'a StateRun<'a>,
    states: &'a StateCache,
    /// The channels, at most [`TASK_CHANNELS`].
    columns: Range<usize>,
}

/// The values of an online softmax of each channel of a task.
type Sum = [[f32; TASK_CHANNELS]; OF_SUM];

impl Task<'_> {
    /// The sums before the run: 0 before the first position.
    fn begin(&self) -> [Sum; 3] {
        let mut sums = [[[0.0; TASK_CHANNELS]; OF_SUM]; 3];
        let parts = sums.iter_mut().flatten().take(OF_SUM * self.op.overlap.sums());
        for (index, values) in parts.enumerate().filter(|_| self.run.from != NO_SLOT) {
            let start = index * self.op.channels() + self.columns.start;
            // SAFETY: only this task uses these channels of the slots of its run.
            let stored = unsafe { self.states.get(self.op.part, self.run.from, start, self.columns.len()) };
            values[..stored.len()].copy_from_slice(stored);
        }
        sums
    }

    /// Stores the sums after a row of the run that has a slot.
    fn keep(&self, row: usize, sums: &[Sum; 3]) {
        let Some(&slot) = self.run.to.get(row).filter(|slot| **slot != NO_SLOT) else { return };
        for (index, values) in sums.iter().flatten().take(OF_SUM * self.op.overlap.sums()).enumerate() {
            let start = index * self.op.channels() + self.columns.start;
            // SAFETY: as in `begin`.
            let stored = unsafe { self.states.get_mut(self.op.part, slot, start, self.columns.len()) };
            stored.copy_from_slice(&values[..stored.len()]);
        }
    }

    /// The values of a part of a row of the step, and their logits: the sums of its gates and of the biases of a row of a pool.
    fn terms(&self, row: usize, part: usize, of_pool: usize) -> impl Iterator<Item = (f32, f32)> {
        let (width, columns) = (self.op.width(), part * self.op.channels() + self.columns.start);
        let of = |values: &'_ [f32], row: usize| {
            row * width + columns..values.len().min(row * width + columns + self.columns.len())
        };
        let (x, gate) = (&self.x[of(self.x, row)], &self.gate[of(self.gate, row)]);
        let bias = &self.op.bias[of(&self.op.bias, of_pool)];
        x.iter().zip(gate.iter().zip(bias)).map(|(x, (gate, bias))| (*x, gate + bias))
    }
}

per_kernel! {
    /// The outputs of a task.
    fn means = means_lanes(task: &Task<'_>, y: &SharedMut<'_, f32>)
}

#[inline(always)]
fn means_lanes<const FMA: bool>(task: &Task<'_>, y: &SharedMut<'_, f32>) {
    let (op, channels) = (task.op, task.op.channels());
    let own_part = op.overlap.parts() - 1;
    let mut sums = task.begin();
    for row in 0..task.run.rows {
        let of_step = task.run.first + row;
        let position = task.positions[of_step] as usize;
        let of_pool = position % op.pool;
        if of_pool == 0 {
            sums[BEFORE] = sums[AFTER];
        }
        add::<FMA>(&mut sums[OWN], of_pool == 0, task.terms(of_step, own_part, of_pool));
        if op.overlap == Overlap::PoolBefore {
            add::<FMA>(&mut sums[AFTER], of_pool == 0, task.terms(of_step, 0, of_pool));
        }
        // SAFETY: each task writes its own channels of its own rows.
        let y = unsafe { y.slice(of_step * channels + task.columns.start, task.columns.len()) };
        if op.overlap == Overlap::PoolBefore && position >= op.pool {
            write_mean_of_both::<FMA>(&sums, y);
        } else {
            let [_, weights, weighted] = &sums[OWN];
            y.iter_mut().zip(weights.iter().zip(weighted)).for_each(|(y, (weight, sum))| *y = sum / weight);
        }
        task.keep(row, &sums);
    }
}

/// Adds a row to the sums of a pool, of which it may be the first.
#[inline(always)]
fn add<const FMA: bool>(
    [largest, weights, weighted]: &mut Sum,
    is_first: bool,
    terms: impl Iterator<Item = (f32, f32)>,
) {
    let sums = largest.iter_mut().zip(weights.iter_mut().zip(weighted));
    if is_first {
        sums.zip(terms).for_each(|((largest, (weight, sum)), (x, logit))| (*largest, *weight, *sum) = (logit, 1.0, x));
        return;
    }
    for ((largest, (weight, sum)), (x, logit)) in sums.zip(terms) {
        let highest = if *largest > logit { *largest } else { logit };
        let (before, own) = (exp(*largest - highest), exp(logit - highest));
        *largest = highest;
        *weight = multiply_add::<FMA>(*weight, before, own);
        *sum = multiply_add::<FMA>(*sum, before, own * x);
    }
}

/// The means over the own pool and the one before.
#[inline(always)]
fn write_mean_of_both<const FMA: bool>(sums: &[Sum; 3], y: &mut [f32]) {
    let [own, before] = [OWN, BEFORE].map(|of| &sums[of]);
    for (channel, y) in y.iter_mut().enumerate() {
        let [a, b] = [own, before].map(|sums| [sums[0][channel], sums[1][channel], sums[2][channel]]);
        let highest = if a[0] > b[0] { a[0] } else { b[0] };
        let (of_own, of_before) = (exp(a[0] - highest), exp(b[0] - highest));
        let weight = multiply_add::<FMA>(a[1], of_own, b[1] * of_before);
        *y = multiply_add::<FMA>(a[2], of_own, b[2] * of_before) / weight;
    }
}

/// One row in float64: `past` has all rows of the sequence before it, each with its gate, and gets this one.
pub fn reference(op: &PoolRows, past: &mut Vec<f64>, [x, gate]: [&[f32]; 2]) -> Vec<f64> {
    let (width, channels, pool) = (op.width(), op.channels(), op.pool);
    let position = past.len() / (2 * width);
    past.extend(x.iter().chain(gate).map(|value| f64::from(*value)));
    let own = (position - position % pool..=position).map(|row| (row, width - channels));
    let first = position / pool * pool;
    let before = (first.saturating_sub(pool)..first).map(|row| (row, 0)).filter(|_| op.overlap == Overlap::PoolBefore);
    let terms: Vec<(usize, usize)> = before.chain(own).collect();
    let mean = |channel: usize| {
        let of = |row: usize, part: usize| (2 * row * width + part + channel, (2 * row + 1) * width + part + channel);
        let weight = |(row, part): (usize, usize)| {
            (past[of(row, part).1] + f64::from(op.bias[row % pool * width + part + channel])).exp()
        };
        let weighted: f64 = terms.iter().map(|&(row, part)| weight((row, part)) * past[of(row, part).0]).sum();
        weighted / terms.iter().copied().map(weight).sum::<f64>()
    };
    (0..channels).map(mean).collect()
}

/// The expected results: pools of models and short ones, channels that fill no vector or task, with overlap and without.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shapes = [(128, 16), (77, 4), (300, 3), (5, 1)];
    shapes
        .into_iter()
        .flat_map(|shape| [Overlap::None, Overlap::PoolBefore].map(|overlap| case(shape, overlap)))
        .collect()
}

fn case((channels, pool): (usize, usize), overlap: Overlap) -> Case {
    let width = channels * overlap.parts();
    let bias = random::activations(pool * width, 1);
    let len = PoolRows::state_len(channels, overlap);
    let part = StatePart { layer: 1, start: 3, len };
    let op = PoolRows::new(bias.into(), (pool, overlap), part).expect("the shapes fit");
    let steps = scenario::steps(0, &Inputs::random(&[width, width]), 5e-6, |past, inputs| {
        reference(&op, past, [inputs[0], inputs[1]])
    });
    let cache = CaseCache::of_states(vec![2, len + 4], scenario::SLOTS);
    Case {
        name: format!("{channels} channels, pools of {pool}, overlap {overlap:?}"),
        op: Box::new(op),
        cache: Some(cache),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        for (channels, pool, overlap) in
            [(200, 4, Overlap::PoolBefore), (33, 16, Overlap::None), (40, 1, Overlap::None)]
        {
            let part = StatePart { layer: 0, start: 0, len: PoolRows::state_len(channels, overlap) };
            let width = channels * overlap.parts();
            let bias = random::activations(width * pool, 1).into();
            let op = PoolRows::new(bias, (pool, overlap), part).expect("the shapes fit");
            scenario::assert_invariant(&op, part.len, &Inputs::random(&[width, width]));
        }
    }

    #[test]
    fn a_state_of_another_size_is_refused() {
        let part = StatePart { layer: 0, start: 0, len: 11 };
        let error = PoolRows::new(vec![0.0; 8].into(), (4, Overlap::None), part).expect_err("six values are needed");
        assert_eq!(error.to_string(), "pool_rows: values of state is 11, but must be 6");
    }
}
