//! The dispatches of the op: the first products of all projections, which are independent, then the second ones.

use super::Target;
use crate::gpu::{DeviceValue, Dispatch, GpuArgs, Module, Push, Region, word};

/// Rows of A of a workgroup, as in `shrink.comp`.
const TILE: usize = 4;

/// More invocations than this would only wait for each other.
const MOST_INVOCATIONS: u32 = 256;

/// Bytes of `A x` of some rows.
pub(super) fn scratch_bytes(target: &Target, rows: usize) -> u64 {
    (target.max_rank * rows * size_of::<f32>()) as u64
}

/// The dispatches for the inputs and outputs of `args`.
pub(super) fn dispatches(targets: &[Target], args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let x = args.inputs[targets.len()];
    let mut free = args.scratch;
    let parts: Vec<(&Target, Region)> = targets
        .iter()
        .map(|target| {
            let (h, rest) = free.split_at(scratch_bytes(target, args.rows.most()));
            free = rest;
            (target, h)
        })
        .collect();
    let first = parts.iter().map(|(target, h)| shrink(target, args, x, *h));
    let values = args.inputs.iter().zip(args.outputs);
    let second = parts.iter().zip(values).map(|((target, h), (y, z))| expand(target, args, [*y, *z], Some(*h)));
    first.chain(second).collect()
}

/// The dispatch of an embedding, which reads columns of A.
pub(super) fn look_up(target: &Target, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    vec![expand(target, args, [args.inputs[0], args.outputs[0]], None)]
}

fn shrink(target: &Target, args: &GpuArgs<'_>, x: DeviceValue, h: Region) -> Dispatch {
    let push = Push::new()
        .address(args.adapters.of(target).address)
        .address(x.region.address)
        .address(h.address)
        .address(args.step);
    Dispatch {
        module: Module::LoraShrink,
        constants: vec![(0, args.workgroup_size_for(target.columns).min(MOST_INVOCATIONS))],
        push: sizes(push, target, args),
        groups: [target.max_rank.div_ceil(TILE), args.rows.most(), 1].map(word),
        reads: vec![x.region],
        writes: vec![h],
    }
}

/// The second product. Without `h` it reads A itself.
fn expand(target: &Target, args: &GpuArgs<'_>, [y, z]: [DeviceValue; 2], h: Option<Region>) -> Dispatch {
    let push = Push::new()
        .address(args.adapters.of(target).address)
        .address(y.region.address)
        .address(h.map_or(0, |h| h.address))
        .address(z.region.address)
        .address(args.step);
    let push = sizes(push, target, args).size(target.outputs);
    let mut dispatch = args.each_column(Module::LoraExpand, push, target.outputs);
    dispatch.constants.push((1, u32::from(h.is_none())));
    Dispatch { reads: [y.region].into_iter().chain(h).collect(), writes: vec![z.region], ..dispatch }
}

/// The constants that both products need.
fn sizes(push: Push, target: &Target, args: &GpuArgs<'_>) -> Push {
    push.word(args.rows.kind()).size(target.slot_bytes() as usize).size(target.columns).size(target.max_rank)
}
