//! Peak rates of a GPU: dispatches whose only purpose is to measure its speed.

use crate::gpu::{DeviceLimits, Dispatch, Module, Push, Region};

/// Independent chains of an invocation or of a subgroup (`CHAINS` in the shaders).
const CHAINS: u64 = 4;

/// Workgroups that saturate the device.
fn groups(device: &DeviceLimits) -> u32 {
    device.saturating_groups() as u32
}

fn workgroup_size(device: &DeviceLimits) -> u32 {
    // Whole subgroups, because matrices need them.
    (256 / device.subgroup_size.max(1)).max(1) * device.subgroup_size
}

fn dispatch(device: &DeviceLimits, module: Module, push: Push, groups: u32) -> Dispatch {
    let size = workgroup_size(device).min(device.max_workgroup_size);
    let constants = vec![(0, size)];
    Dispatch { module, constants, push, groups: [groups, 1, 1], reads: Vec::new(), writes: Vec::new() }
}

/// Reads a region, except a rest that is not a whole pass of all workgroups. Returns the number of bytes.
#[must_use]
pub fn read(device: &DeviceLimits, region: Region, result: Region) -> (Dispatch, u64) {
    const MOST_EACH: u64 = 64;
    const QUAD_BYTES: u64 = 16;
    let invocations = |groups: u64| groups * u64::from(workgroup_size(device).min(device.max_workgroup_size));
    let quads = region.bytes / QUAD_BYTES;
    // Few enough workgroups that each invocation has several reads, and at most as many as a dimension has.
    let groups = (quads / invocations(1) / MOST_EACH).clamp(1, u64::from(device.max_groups[0]));
    let each = quads / invocations(groups);
    let push = Push::new().address(region.address).address(result.address).word(each as u32);
    (dispatch(device, Module::RooflineRead, push, groups as u32), each * invocations(groups) * QUAD_BYTES)
}

/// Multiplies and adds in float32. Returns the number of operations: a multiplication and an addition are two.
#[must_use]
pub fn multiply_adds(device: &DeviceLimits, rounds: u32, result: Region) -> (Dispatch, u64) {
    const LANES: u64 = 4;
    let dispatch = dispatch(device, Module::RooflineMultiplyAdds, push(rounds, result), groups(device));
    let invocations = u64::from(groups(device)) * u64::from(dispatch.constants[0].1);
    (dispatch, 2 * LANES * CHAINS * u64::from(rounds) * invocations)
}

/// Multiplies matrices of float16, and returns the number of operations; `None` for a device without such matrices.
#[must_use]
pub fn matrices(device: &DeviceLimits, rounds: u32, result: Region) -> Option<(Dispatch, u64)> {
    let shape = device.cooperative_matrix?;
    let mut dispatch = dispatch(device, Module::RooflineMatrices, push(rounds, result), groups(device));
    dispatch.constants.extend((6..).zip(shape));
    let subgroups = u64::from(groups(device)) * u64::from(dispatch.constants[0].1 / device.subgroup_size);
    let of_matrix: u64 = shape.iter().map(|size| u64::from(*size)).product();
    Some((dispatch, 2 * of_matrix * CHAINS * u64::from(rounds) * subgroups))
}

fn push(rounds: u32, result: Region) -> Push {
    Push::new().address(result.address).word(rounds).float(0.5)
}
