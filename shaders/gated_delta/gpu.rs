//! The dispatch of [`GatedDelta`]: `scan.comp`, one workgroup for 32 columns of each head of each run of rows.

use super::{DecayForm, GatedDelta, HeadOrder};
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::recurrent::{GROUP_COLUMNS, column_slices};

pub(super) fn dispatch(delta: &GatedDelta, args: &GpuArgs<'_>) -> Dispatch {
    let (shape, state) = (&delta.shape, args.states.of(delta.part));
    let slices = column_slices(shape.key_dim, args.device.max_workgroup_size as usize);
    let mut push = Push::new();
    for address in args.inputs.iter().map(|input| input.region.address).chain(args.tables.iter().map(|t| t.address)) {
        push = push.address(address);
    }
    let push = push
        .address(args.outputs[0].region.address)
        .address(state.address)
        .address(args.step)
        .size(args.states.slot_len(delta.part))
        .size(shape.key_heads)
        .size(shape.value_heads)
        .size(shape.value_dim);
    let sizes = [GROUP_COLUMNS * slices, shape.key_dim, slices, delta.decays()].map(word);
    let is_tiled = u32::from(shape.order == HeadOrder::Tiled);
    let bound = match delta.form {
        DecayForm::Softplus => 0.0f32,
        DecayForm::Bounded(bound) => bound,
    };
    let constants = (0..).zip(sizes.into_iter().chain([is_tiled, bound.to_bits()])).collect();
    let columns = shape.value_dim.div_ceil(GROUP_COLUMNS);
    Dispatch {
        module: Module::GatedDeltaScan,
        constants,
        push,
        groups: [shape.value_heads * columns, args.sequences, 1].map(word),
        reads: args.inputs.iter().map(|input| input.region).chain([state]).collect(),
        writes: vec![args.outputs[0].region, state],
    }
}
