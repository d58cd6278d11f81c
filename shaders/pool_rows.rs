//! Weighted means of the rows of pools: the keys with which an indexer selects pools.

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
use crate::recurrent::{PastRows, StatePart, StateRun, TASK_CHANNELS};

/// The weighted mean of the rows of a pool up to each row. A pool has `pool` rows at adjacent positions, of which the first is a
/// multiple of `pool`. For a row at position `p` with `m = p mod pool`, and `x[0] .. x[m]` the rows of its pool up to it:
/// `y[c] = sum_j w[j, c] x[j, c]`, where `w[., c]` is the softmax of `gate[j, c] + bias[j, c]` over j.
///
/// - x, gate, y: [rows, channels]
/// - bias: [pool, channels]
/// - State: the last `pool - 1` rows of x, then those of the gate, oldest first: [pool - 1, channels] each.
/// - Source: GLM-5 Team 2026, "GLM-5.3-Flash" and its reference code. The mean of a whole pool is that of its last row.
#[derive(Debug, Clone)]
pub struct PoolRows {
    bias: Arc<[f32]>,
    pool: usize,
    part: StatePart,
}

impl PoolRows {
    /// The means of pools with this bias, and the state at `part`.
    ///
    /// # Errors
    /// [`ShapeError`] when bias and state do not fit one another.
    pub fn new(bias: Arc<[f32]>, pool: usize, part: StatePart) -> Result<Self, ShapeError> {
        let channels = bias.len() / pool.max(1);
        ShapeError::check("pool_rows", "length of the bias", bias.len(), channels * pool)?;
        ShapeError::check("pool_rows", "values of state", part.len, PoolRows::state_len(channels, pool))?;
        Ok(PoolRows { bias, pool, part })
    }

    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(channels: usize, pool: usize) -> usize {
        2 * channels * pool.saturating_sub(1)
    }

    fn channels(&self) -> usize {
        self.bias.len() / self.pool
    }

    /// The parts of the state for the rows and for their gates.
    fn parts(&self) -> [StatePart; 2] {
        let StatePart { layer, start, len } = self.part;
        [start, start + len / 2].map(|start| StatePart { layer, start, len: len / 2 })
    }
}

impl Op for PoolRows {
    fn name(&self) -> &'static str {
        "pool_rows"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        for input in inputs {
            ShapeError::check(self.name(), "width of an input", *input, self.channels())?;
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
            // An exponential function counts as much as the rest of a term.
            float_operations: 4 * (args.output_values() * self.pool.div_ceil(2)) as u64,
            ..Cost::default()
        }
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let runs = StateRun::all(&args.batch);
        let (stored, channels) = (self.pool - 1, self.channels());
        let blocks = channels.div_ceil(TASK_CHANNELS);
        let y = SharedMut::new(&mut *args.outputs[0]);
        let (kernel, inputs, states, positions) = (args.kernel, args.inputs, args.states, args.batch.positions);
        args.team.for_each(runs.len() * blocks, &|task| {
            let run = &runs[task / blocks];
            let start = task % blocks * TASK_CHANNELS;
            let columns = start..channels.min(start + TASK_CHANNELS);
            let [keys, gates] = [0, 1].map(|input| {
                let (x, part, columns) = (inputs[input], self.parts()[input], columns.clone());
                PastRows { run, x, states, part, columns, stored, channels }
            });
            let positions = &positions[run.first..][..run.rows];
            mean_of_pools(kernel, &Task { op: self, keys: &keys, gates: &gates, positions }, &y);
            keys.store();
            gates.store();
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.bias]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let [keys, gates] = self.parts();
        let states = [keys, gates].map(|part| args.states.of(part));
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.inputs[1].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(states[0].address)
            .address(states[1].address)
            .address(args.step)
            .size(self.channels())
            .size(args.states.slot_len(self.part));
        // One invocation for each channel of each run of rows.
        let mut dispatch = args.each_column(Module::PoolRows, push, self.channels());
        dispatch.groups[1] = word(args.sequences);
        dispatch.constants.push((1, word(self.pool)));
        dispatch.reads.extend(states);
        dispatch.writes.extend(states);
        vec![dispatch]
    }
}

/// Some channels of a run of rows.
struct Task<'a> {
    op: &'a PoolRows,
    keys: &'a PastRows<'a>,
    gates: &'a PastRows<'a>,
    /// Those of the rows of the run.
    positions: &'a [u32],
}

per_kernel! {
    /// The outputs of a task.
    fn mean_of_pools = mean_of_pools_lanes(task: &Task<'_>, y: &SharedMut<'_, f32>)
}

#[inline(always)]
fn mean_of_pools_lanes<const FMA: bool>(task: &Task<'_>, y: &SharedMut<'_, f32>) {
    let (pool, columns, channels) = (task.op.pool, &task.keys.columns, task.op.channels());
    for (row, position) in task.positions.iter().enumerate() {
        // SAFETY: each task writes its own channels of its own rows.
        let y = unsafe { y.slice((task.keys.run.first + row) * channels + columns.start, columns.len()) };
        let members = *position as usize % pool + 1;
        let first = row + pool - members;
        let member = |index: usize| {
            let bias = &task.op.bias[index * channels..][columns.clone()];
            (task.keys.get(first + index), task.gates.get(first + index).iter().zip(bias))
        };
        let mut highest = [f32::NEG_INFINITY; TASK_CHANNELS];
        for index in 0..members {
            let logits = member(index).1.map(|(gate, bias)| gate + bias);
            highest.iter_mut().zip(logits).for_each(|(highest, logit)| *highest = highest.max(logit));
        }
        let mut sums = [0.0; TASK_CHANNELS];
        y.fill(0.0);
        for index in 0..members {
            let (keys, logits) = member(index);
            for ((((y, sum), highest), key), (gate, bias)) in
                y.iter_mut().zip(&mut sums).zip(&highest).zip(keys).zip(logits)
            {
                let weight = exp(gate + bias - highest);
                *sum += weight;
                *y = multiply_add::<FMA>(weight, *key, *y);
            }
        }
        y.iter_mut().zip(sums).for_each(|(y, sum)| *y /= sum);
    }
}

/// One row in float64: `past` has all rows of the sequence before it, each with its gate, and gets this one.
pub fn reference(bias: &[f32], pool: usize, past: &mut Vec<f64>, [x, gate]: [&[f32]; 2]) -> Vec<f64> {
    let channels = x.len();
    let position = past.len() / (2 * channels);
    past.extend(x.iter().chain(gate).map(|value| f64::from(*value)));
    let first = position - position % pool;
    let mean = |channel: usize| {
        let weight = |row: usize| {
            (past[(2 * row + 1) * channels + channel] + f64::from(bias[(row - first) * channels + channel])).exp()
        };
        let weighted: f64 = (first..=position).map(|row| weight(row) * past[2 * row * channels + channel]).sum();
        weighted / (first..=position).map(weight).sum::<f64>()
    };
    (0..channels).map(mean).collect()
}

/// The expected results: pools of models and short ones, channels that fill no vector or task.
#[must_use]
pub fn cases() -> Vec<Case> {
    [(128, 16), (77, 4), (300, 3), (5, 1)].map(case).into()
}

fn case((channels, pool): (usize, usize)) -> Case {
    let bias = random::activations(pool * channels, 1);
    let len = PoolRows::state_len(channels, pool);
    let part = StatePart { layer: 1, start: 3, len };
    let steps = scenario::steps(0, &Inputs::random(&[channels, channels]), 5e-6, |past, inputs| {
        reference(&bias, pool, past, [inputs[0], inputs[1]])
    });
    let cache = CaseCache::of_states(vec![2, len + 4], scenario::SLOTS);
    let op = PoolRows::new(bias.clone().into(), pool, part).expect("the shapes fit");
    Case { name: format!("{channels} channels, pools of {pool}"), op: Box::new(op), cache: Some(cache), steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        for (channels, pool) in [(200, 4), (33, 16), (40, 1)] {
            let part = StatePart { layer: 0, start: 0, len: PoolRows::state_len(channels, pool) };
            let op = PoolRows::new(random::activations(channels * pool, 1).into(), pool, part).expect("the shapes fit");
            scenario::assert_invariant(&op, part.len, &Inputs::random(&[channels, channels]));
        }
    }

    #[test]
    fn a_state_of_another_size_is_refused() {
        let part = StatePart { layer: 0, start: 0, len: 11 };
        let error = PoolRows::new(vec![0.0; 8].into(), 4, part).expect_err("twelve values are needed");
        assert_eq!(error.to_string(), "pool_rows: values of state is 11, but must be 12");
    }
}
