//! The gated delta rule on the CPU: how threads share the work.
//!
//! First come the factors of each row: decays, betas, and the scales of queries and keys. Then each block of columns of
//! each head of each sequence is a task of its own. Its state stays in the L1 cache while the task goes over the rows.

use super::factors::{factors_len, row_factors};
use super::scan::{Block, scan};
use super::{BLOCK_COLUMNS, GatedDelta};
use crate::cpu::{SharedMut, for_each_chunk};
use crate::op::CpuArgs;
use crate::recurrent::{StateBlock, StateRun};

/// Scratch memory in values: the factors of all rows.
pub(super) fn scratch_len(delta: &GatedDelta, rows: usize) -> usize {
    rows * factors_len(delta)
}

pub(super) fn run(delta: &GatedDelta, args: &mut CpuArgs<'_>) {
    let (kernel, len) = (args.kernel, factors_len(delta));
    let factors = &mut args.scratch[..args.rows * len];
    let inputs = args.inputs;
    for_each_chunk(args.team, factors, len, &|row, to| row_factors(kernel, delta, inputs, row, to));
    let runs = StateRun::all(&args.batch);
    let blocks = delta.shape.value_heads * delta.shape.blocks();
    let output = SharedMut::new(&mut *args.outputs[0]);
    let (mixed, states) = (inputs[0], args.states);
    args.team.for_each(runs.len() * blocks, &|task| {
        let run = &runs[task / blocks];
        let (head, block) = (task % blocks / delta.shape.blocks(), task % delta.shape.blocks());
        let len = delta.shape.block_len();
        let state = StateBlock { states, part: delta.part, start: task % blocks * len, len, run };
        let column = block * BLOCK_COLUMNS;
        let columns = BLOCK_COLUMNS.min(delta.shape.value_dim - column);
        // SAFETY: only this task uses this block of the slots of its run.
        unsafe { scan(kernel, &Block { delta, state, head, column, columns, mixed, factors, output: &output }) };
    });
}
