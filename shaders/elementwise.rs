//! Ops that compute each value by itself: re-exports of them, and the functions that they share.

use std::ops::Range;

use crate::cpu::{Kernel, SharedMut};
use crate::op::CpuArgs;
use crate::per_kernel;

pub use crate::activate::{Activate, Pointwise};
pub use crate::add::Add;
pub use crate::clamp::Clamp;
pub use crate::gate_rows::GateRows;
pub use crate::scale::Scale;
pub use crate::scale_by_position::ScaleByPosition;
pub use crate::softcap::Softcap;

/// Shapes that the cases of these ops share: one value, and rows that fill no whole vector or workgroup.
pub(crate) const CASE_SHAPES: [(usize, usize); 4] = [(1, 1), (3, 77), (64, 576), (200, 8)];

/// Calls `body` with each row's range of values in the inputs, and with the row of the output.
pub(crate) fn for_each_row(args: &mut CpuArgs<'_>, body: &(impl Fn(Kernel, Range<usize>, &mut [f32]) + Sync)) {
    let width = args.inputs[0].len() / args.rows.max(1);
    let y = SharedMut::new(args.outputs[0]);
    let kernel = args.kernel;
    args.team.for_each(args.rows, &|row| {
        // SAFETY: each task writes its own row.
        let y = unsafe { y.slice(row * width, width) };
        body(kernel, row * width..(row + 1) * width, y);
    });
}

per_kernel! {
    /// `y = factor * x`.
    pub(crate) fn scale_row = scale_row_lanes(x: &[f32], factor: f32, y: &mut [f32])
}

#[inline(always)]
fn scale_row_lanes<const FMA: bool>(x: &[f32], factor: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x * factor;
    }
}
