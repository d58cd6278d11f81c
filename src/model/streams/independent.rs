//! Streams that each half of a layer reads by gates of the row, and to each of which it adds its output by another gate.
//!
//! Source: Tencent 2026, "Hy4-preview" and its reference code.

use cuelight_shaders::stream_gates::StreamGates;

use super::hyper::read_by;
use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};

/// What a half of a layer reads of the streams, and the gates with which it adds to them: the logistic function of the row, times
/// `magnitude` for what is added, plus epsilon. Its tensors start with `stem`.
pub(super) fn read(
    builder: &mut Builder<'_>,
    layer: usize,
    (count, magnitude, epsilon, stem): (usize, f32, f32, &str),
    x: ValueId,
) -> Result<[ValueId; 2], BuildError> {
    let normed = builder.norm_by(vec![1.0; builder.graph.width(x)].into(), x)?;
    let projected = builder.linear_parts(layer, (&format!("{stem}_fn"), &[count; 2]), normed)?;
    let scale = builder.weights.vector(&format!("blk.{layer}.{stem}_scale.weight"), 2)?;
    let bias = builder.weights.vector(&format!("blk.{layer}.{stem}_base.weight"), 2 * count)?;
    let (of_read, of_added) = bias.split_at(count);
    let gates = StreamGates::read_only(count, scale[0], of_read.into(), epsilon)?;
    let gates = builder.graph.push_one(gates, &[projected[0]])?;
    let added = StreamGates::read_only(count, scale[1], of_added.into(), epsilon / magnitude)?;
    let added = builder.graph.push_one(added, &[projected[1]])?;
    Ok([read_by(builder, count, [x, gates])?, builder.times(magnitude, added)?])
}
