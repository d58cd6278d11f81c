//! The dispatch of [`StateSpace`]: `scan.comp`, one workgroup for some columns of each head of each run of rows.

use super::StateSpace;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::recurrent::{GROUP_COLUMNS, column_slices};

pub(super) fn dispatch(space: &StateSpace, args: &GpuArgs<'_>) -> Dispatch {
    let (shape, state) = (&space.shape, args.states.of(space.part));
    let slices = column_slices(shape.state_dim, args.device.max_workgroup_size as usize);
    let mut push = Push::new();
    for address in args.inputs.iter().map(|input| input.region.address).chain(args.tables.iter().map(|t| t.address)) {
        push = push.address(address);
    }
    let push = push
        .address(args.outputs[0].region.address)
        .address(state.address)
        .address(args.step)
        .size(args.states.slot_len(space.part))
        .size(shape.heads)
        .size(shape.head_dim)
        .size(shape.groups);
    let constants = (0..).zip([GROUP_COLUMNS * slices, shape.state_dim, slices].map(word)).collect();
    Dispatch {
        module: Module::StateSpaceScan,
        constants,
        push,
        groups: [shape.heads * shape.head_dim.div_ceil(GROUP_COLUMNS), args.sequences, 1].map(word),
        reads: args.inputs.iter().map(|input| input.region).chain([state]).collect(),
        writes: vec![args.outputs[0].region, state],
    }
}
