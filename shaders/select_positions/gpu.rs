//! The dispatches of [`SelectPositions`]: store the index keys, compute the scores, select.
//!
//! - `score.comp` computes the scores of pools with a key, `score_pools.comp` those of pools for each head by itself.
//! - `choose.comp` selects for each row, or for each of its heads.

use super::SelectPositions;
use crate::attention::{head_constants, store_keys};
use crate::gpu::{Dispatch, GpuArgs, Module, Push, Region, word};
use crate::selection::Unit;

/// Workgroups for the scores of one row: enough for a device that computes nothing else.
const MOST_GROUPS: usize = 256;

/// Invocations that select the positions of a row.
const CHOOSING: u32 = 256;

/// Heads for which `score_pools.comp` reads a key once.
const TOGETHER: usize = 8;

/// Bytes of the scores of all rows.
pub(super) fn scratch_bytes(op: &SelectPositions, rows: usize, context_tokens: usize) -> u64 {
    (rows * op.selection.lists * scores_of_list(op, context_tokens) * size_of::<u32>()) as u64
}

/// Scores of a row, or of one of its heads.
fn scores_of_list(op: &SelectPositions, context_tokens: usize) -> usize {
    match op.last_of_each_head() {
        Some(_) => context_tokens.div_ceil(op.selection.pool),
        None => context_tokens,
    }
}

pub(super) fn dispatches(op: &SelectPositions, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let index = args.kv.indexes[op.layer];
    let score = match op.last_of_each_head() {
        Some(last) => score_pools(op, last, index, args),
        None => score(op, index, args),
    };
    vec![store_keys(op.index(), [args.inputs[1].region, index], args), score, choose(op, args)]
}

/// The scores of each row that does not select all positions.
fn score(op: &SelectPositions, index: Region, args: &GpuArgs<'_>) -> Dispatch {
    let [query, weight] = [0, 2].map(|input| args.inputs[input].region);
    let push = Push::new()
        .address(query.address)
        .address(weight.address)
        .address(index.address)
        .address(args.scratch.address)
        .address(args.step)
        .size(op.n_heads)
        .size(op.selection.all_up_to())
        .size(op.selection.pool)
        .size(args.context_tokens);
    let size = args.workgroup_size();
    let mut constants = vec![(0, size)];
    constants.extend(head_constants(op.index(), args.kv.kv_type));
    let groups = args.context_tokens.div_ceil(size as usize).clamp(1, MOST_GROUPS);
    Dispatch {
        module: Module::SelectPositionsScore,
        constants,
        push,
        groups: [groups, args.rows.most(), 1].map(word),
        reads: vec![query, weight, index],
        writes: vec![args.scratch],
    }
}

/// The scores of each pool for each head of each row that does not select all positions.
fn score_pools(op: &SelectPositions, last: usize, index: Region, args: &GpuArgs<'_>) -> Dispatch {
    let query = args.inputs[0].region;
    let pools = scores_of_list(op, args.context_tokens);
    let push = Push::new()
        .address(query.address)
        .address(index.address)
        .address(args.scratch.address)
        .address(args.step)
        .size(op.n_heads)
        .size(op.selection.all_up_to())
        .size(op.selection.pool)
        .size(last)
        .size(pools);
    let mut constants = vec![(0, args.workgroup_size()), (1, word(op.n_heads.min(TOGETHER)))];
    constants.extend(head_constants(op.index(), args.kv.kv_type));
    Dispatch {
        module: Module::SelectPositionsScorePools,
        constants,
        push,
        groups: [pools.clamp(1, MOST_GROUPS), args.rows.most(), 1].map(word),
        reads: vec![query, index],
        writes: vec![args.scratch],
    }
}

/// The selection of each row.
fn choose(op: &SelectPositions, args: &GpuArgs<'_>) -> Dispatch {
    let output = args.outputs[0].region;
    let push = Push::new()
        .address(args.scratch.address)
        .address(output.address)
        .address(args.step)
        .size(op.selection.most)
        .size(op.selection.all_up_to())
        .size(op.selection.pools())
        .size(op.selection.pool)
        .size(scores_of_list(op, args.context_tokens));
    let has_own_pool = u32::from(op.selection.has_own_pool());
    let of_pools = u32::from(op.selection.unit == Unit::Pools);
    Dispatch {
        module: Module::SelectPositionsChoose,
        constants: vec![(0, CHOOSING.min(args.device.max_workgroup_size)), (1, of_pools), (2, has_own_pool)],
        push,
        groups: [op.selection.lists, args.rows.most(), 1].map(word),
        reads: vec![args.scratch],
        writes: vec![output],
    }
}
