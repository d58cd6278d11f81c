//! The dispatch of [`SelectiveScan`]: `scan.comp`, one workgroup for some channels of each run of rows.

use super::SelectiveScan;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::recurrent::{GROUP_COLUMNS, column_slices};

pub(super) fn dispatch(op: &SelectiveScan, args: &GpuArgs<'_>) -> Dispatch {
    let (shape, state) = (&op.shape, args.states.of(op.part));
    let slices = column_slices(shape.state_dim, args.device.max_workgroup_size as usize);
    let mut push = Push::new();
    for address in args.inputs.iter().map(|input| input.region.address).chain(args.tables.iter().map(|t| t.address)) {
        push = push.address(address);
    }
    let push = push
        .address(args.outputs[0].region.address)
        .address(state.address)
        .address(args.step)
        .size(args.states.slot_len(op.part))
        .size(shape.channels);
    let constants = (0..).zip([GROUP_COLUMNS * slices, shape.state_dim, slices].map(word)).collect();
    Dispatch {
        module: Module::SelectiveScanScan,
        constants,
        push,
        groups: [shape.channels.div_ceil(GROUP_COLUMNS), args.sequences, 1].map(word),
        reads: args.inputs.iter().map(|input| input.region).chain([state]).collect(),
        writes: vec![args.outputs[0].region, state],
    }
}
