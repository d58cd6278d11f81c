//! The selective scan on the CPU: how threads share the work.
//!
//! First comes dt of each channel of each row. Then some blocks of channels of each sequence are a task. The state of a block
//! stays in the L1 cache while the task goes over the rows.

use super::scan::{Block, scan};
use super::{BLOCK_CHANNELS, SelectiveScan};
use crate::cpu::{SharedMut, for_each_chunk};
use crate::lanes::softplus;
use crate::op::CpuArgs;
use crate::per_kernel;
use crate::recurrent::{StateBlock, StateRun};

/// Blocks of a task: enough work for a thread.
const TASK_BLOCKS: usize = 8;

/// Scratch memory in values: dt of all rows.
pub(super) fn scratch_len(op: &SelectiveScan, rows: usize) -> usize {
    rows * op.shape.channels
}

pub(super) fn run(op: &SelectiveScan, args: &mut CpuArgs<'_>) {
    let (kernel, channels) = (args.kernel, op.shape.channels);
    let times = &mut args.scratch[..scratch_len(op, args.rows)];
    let [x, dt, b, c] = [0, 1, 2, 3].map(|input| args.inputs[input]);
    for_each_chunk(args.team, times, channels, &|row, to| {
        row_times(kernel, &dt[row * channels..][..channels], to);
    });
    let runs = StateRun::all(&args.batch);
    let blocks = channels.div_ceil(BLOCK_CHANNELS);
    let tasks = blocks.div_ceil(TASK_BLOCKS);
    let (states, output) = (args.states, SharedMut::new(&mut *args.outputs[0]));
    args.team.for_each(runs.len() * tasks, &|task| {
        let run = &runs[task / tasks];
        let first = task % tasks * TASK_BLOCKS;
        for block in first..blocks.min(first + TASK_BLOCKS) {
            let len = op.shape.block_len();
            let state = StateBlock { states, part: op.part, start: block * len, len, run };
            let start = block * BLOCK_CHANNELS;
            let channels = start..channels.min(start + BLOCK_CHANNELS);
            // SAFETY: only this task uses this block of the slots of its run.
            unsafe { scan(kernel, &Block { op, state, channels, x, times, b, c, output: &output }) };
        }
    });
}

per_kernel! {
    /// dt of all channels of one row.
    fn row_times = row_times_lanes(dt: &[f32], times: &mut [f32])
}

#[inline(always)]
fn row_times_lanes<const FMA: bool>(dt: &[f32], times: &mut [f32]) {
    times.iter_mut().zip(dt).for_each(|(time, dt)| *time = softplus(*dt));
}
