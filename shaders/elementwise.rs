//! What the ops that compute each value or row by itself share.

use std::ops::Range;

use crate::cpu::{Kernel, for_each_chunk};
use crate::op::CpuArgs;
use crate::per_kernel;

/// Shapes that the cases of these ops share: one value, and rows that fill no whole vector or workgroup.
pub(crate) const CASE_SHAPES: [(usize, usize); 4] = [(1, 1), (3, 77), (64, 576), (200, 8)];

/// Calls `body` with the range of values of each row in the inputs, and with the row of the output.
pub(crate) fn for_each_row(args: &mut CpuArgs<'_>, body: &(impl Fn(Kernel, Range<usize>, &mut [f32]) + Sync)) {
    let width = args.inputs[0].len() / args.rows.max(1);
    let kernel = args.kernel;
    for_each_chunk(args.team, args.outputs[0], width, &|row, y| body(kernel, row * width..(row + 1) * width, y));
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
