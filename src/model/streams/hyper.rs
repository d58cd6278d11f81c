//! Streams that each half of a layer reads by gates of the row, and mixes when it adds its output.
//!
//! Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections".

use cuelight_shaders::heads::JoinHeads;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::mix_streams::MixStreams;
use cuelight_shaders::stream_gates::StreamGates;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::HyperSizes;

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
    Ok([read_by(builder, count, [x, gates[0]])?, gates[1]])
}

/// The combination of the streams by gates of the row.
pub(super) fn read_by(builder: &mut Builder<'_>, count: usize, inputs: [ValueId; 2]) -> Result<ValueId, BuildError> {
    let reads = MixStreams::new(count, vec![0.0; count].into())?.varied();
    Ok(builder.graph.push_one(reads, &inputs)?)
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

/// What follows the last layer: a combination of the streams by gates of the row where the file has these, else their mean.
pub(super) fn merge(
    builder: &mut Builder<'_>,
    (count, epsilon): (usize, f32),
    x: ValueId,
) -> Result<ValueId, BuildError> {
    const GATES: &str = "output_hc_fn.weight";
    if builder.weights.has(GATES) {
        let normed = builder.norm_by(vec![1.0; builder.graph.width(x)].into(), x)?;
        let matrix = builder.weights.matrix(GATES, count, builder.graph.width(x))?;
        let projected = builder.graph.push_one(Linear::new(vec![matrix], vec![None])?, &[normed])?;
        let scale = builder.weights.vector("output_hc_scale.weight", 1)?[0];
        let bias = builder.weights.vector("output_hc_base.weight", count)?;
        let gates = StreamGates::read_only(count, scale, bias, epsilon)?;
        let gates = builder.graph.push_one(gates, &[projected])?;
        return read_by(builder, count, [x, gates]);
    }
    let mean = vec![1.0 / count as f32; count].into();
    Ok(builder.graph.push_one(MixStreams::new(count, mean)?, &[x])?)
}
