//! The state space on the CPU: how threads share the work.
//!
//! First come dt and the decay of each head of each row. Then each block of columns of each head of each sequence is a task
//! of its own. Its state stays in the L1 cache while the task goes over the rows.

use super::factors::row_factors;
use super::scan::{Block, scan};
use super::{BLOCK_COLUMNS, StateSpace};
use crate::cpu::{SharedMut, for_each_chunk};
use crate::op::CpuArgs;
use crate::recurrent::{StateBlock, StateRun};

/// Scratch memory in values: dt and the decay of each head of all rows.
pub(super) fn scratch_len(space: &StateSpace, rows: usize) -> usize {
    2 * rows * space.shape.heads
}

pub(super) fn run(space: &StateSpace, args: &mut CpuArgs<'_>) {
    let (kernel, heads) = (args.kernel, space.shape.heads);
    let factors = &mut args.scratch[..scratch_len(space, args.rows)];
    let (mixed, dt, states) = (args.inputs[0], args.inputs[1], args.states);
    for_each_chunk(args.team, factors, 2 * heads, &|row, to| {
        row_factors(kernel, space, &dt[row * heads..][..heads], to);
    });
    let runs = StateRun::all(&args.batch);
    let blocks = heads * space.shape.blocks();
    let output = SharedMut::new(&mut *args.outputs[0]);
    args.team.for_each(runs.len() * blocks, &|task| {
        let run = &runs[task / blocks];
        let (head, block) = (task % blocks / space.shape.blocks(), task % space.shape.blocks());
        let len = space.shape.block_len();
        let state = StateBlock { states, part: space.part, start: task % blocks * len, len, run };
        let column = block * BLOCK_COLUMNS;
        let columns = BLOCK_COLUMNS.min(space.shape.head_dim - column);
        // SAFETY: only this task uses this block of the slots of its run.
        unsafe { scan(kernel, &Block { space, state, head, column, columns, mixed, factors, output: &output }) };
    });
}
