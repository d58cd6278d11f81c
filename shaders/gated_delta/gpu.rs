//! The dispatch of [`GatedDelta`]: `scan.comp`, one workgroup for 32 columns of each head of each run of rows.

use super::{GatedDelta, HeadOrder};
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};

/// Columns of a workgroup, and the most slices of the keys that its invocations share (`scan.comp`).
const COLUMNS: usize = 32;
const MOST_SLICES: usize = 8;

pub(super) fn dispatch(delta: &GatedDelta, args: &GpuArgs<'_>) -> Dispatch {
    let (shape, state) = (&delta.shape, args.states.of(delta.part));
    let slices = slices(shape.key_dim, args.device.max_workgroup_size as usize);
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
    let sizes = [COLUMNS * slices, shape.key_dim, slices, delta.decays()].map(word);
    let is_tiled = u32::from(shape.order == HeadOrder::Tiled);
    let constants = (0..).zip(sizes.into_iter().chain([is_tiled])).collect();
    let columns = shape.value_dim.div_ceil(COLUMNS);
    Dispatch {
        module: Module::GatedDeltaScan,
        constants,
        push,
        groups: [shape.value_heads * columns, args.sequences, 1].map(word),
        reads: args.inputs.iter().map(|input| input.region).chain([state]).collect(),
        writes: vec![args.outputs[0].region, state],
    }
}

/// The slices of the keys: a power of two that divides them.
fn slices(key_dim: usize, max_workgroup_size: usize) -> usize {
    let divides = |slices: &usize| key_dim.is_multiple_of(*slices) && COLUMNS * slices <= max_workgroup_size;
    [MOST_SLICES, 4, 2].into_iter().find(divides).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::slices;

    #[test]
    fn slices_divide_the_keys_and_fit_a_workgroup() {
        assert_eq!([128, 20, 6, 7].map(|key_dim| slices(key_dim, 1024)), [8, 4, 2, 1]);
        assert_eq!(slices(128, 128), 4);
    }
}
