//! Streams that each half of a layer reads by gates of the row, and mixes when it adds its output.
//!
//! Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections".

use cuelight_shaders::heads::JoinHeads;
use cuelight_shaders::mix_streams::MixStreams;
use cuelight_shaders::stream_gates::StreamGates;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::HyperSizes;

/// The streams of the embedding `x`: copies of it.
pub(super) fn split(builder: &mut Builder<'_>, count: usize, x: ValueId) -> Result<ValueId, BuildError> {
    Ok(builder.graph.push_one(MixStreams::new(1, vec![1.0; count].into())?, &[x])?)
}

/// What a half of a layer reads of the streams, and the coefficients with which it updates them. Its tensors start with `stem`.
pub(super) fn read(
    builder: &mut Builder<'_>,
    layer: usize,
    (count, sizes, stem): (usize, HyperSizes, &str),
    x: ValueId,
) -> Result<[ValueId; 2], BuildError> {
    let gates = (count + 2) * count;
    let normed = builder.norm_by(vec![1.0; builder.graph.width(x)].into(), x)?;
    let projected = builder.linear(layer, &[(&format!("{stem}_fn"), gates)], normed)?[0];
    let scale = builder.weights.vector(&format!("blk.{layer}.{stem}_scale.weight"), 3)?;
    let bias = builder.weights.vector(&format!("blk.{layer}.{stem}_base.weight"), gates)?;
    let op = StreamGates::new(count, [scale[0], scale[1], scale[2]], bias, (sizes.rounds, sizes.epsilon))?;
    let gates = builder.graph.push(op, &[projected])?;
    let reads = MixStreams::new(count, vec![0.0; count].into())?.varied();
    Ok([builder.graph.push_one(reads, &[x, gates[0]])?, gates[1]])
}

/// The streams after a half of a layer, from those before it, its coefficients and its output.
pub(super) fn write(
    builder: &mut Builder<'_>,
    count: usize,
    [x, update, output]: [ValueId; 3],
) -> Result<ValueId, BuildError> {
    let (first, second) = (builder.graph.width(x), builder.graph.width(output));
    let all = builder.graph.push_one(JoinHeads { first, second }, &[x, output])?;
    let mixes = MixStreams::new(count + 1, vec![0.0; count * (count + 1)].into())?.varied();
    Ok(builder.graph.push_one(mixes, &[all, update])?)
}

/// The mean of the streams.
pub(super) fn merge(builder: &mut Builder<'_>, count: usize, x: ValueId) -> Result<ValueId, BuildError> {
    let mean = vec![1.0 / count as f32; count].into();
    Ok(builder.graph.push_one(MixStreams::new(count, mean)?, &[x])?)
}
