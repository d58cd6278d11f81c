//! The gated convolution as a mixer.

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::glu::{Activation, Glu};

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::ConvLayer;

/// Appends a mixer with a gated convolution: project to two gates and a value, gate it, convolve, gate again, project back.
///
/// Source: Liquid AI 2025, "LFM2 Technical Report".
pub(super) fn short_conv(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &ConvLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let ConvLayer { channels, width } = *sizes;
    let projected = builder.linear_parts(layer, ("shortconv.in_proj", &[channels; 3]), x)?;
    let gate = || Glu::new(Activation::Bilinear);
    let gated = builder.graph.push_one(gate(), &[projected[0], projected[2]])?;
    let weight = builder.weights.matrix(&format!("blk.{layer}.shortconv.conv.weight"), channels, width)?;
    let conv = CausalConv::new(&weight.to_f32(), width, None, sizes.state_part(layer))?;
    let mixed = builder.graph.push_one(conv, &[gated])?;
    let gated = builder.graph.push_one(gate(), &[projected[1], mixed])?;
    Ok(builder.linear(layer, &[("shortconv.out_proj", builder.h.hidden_size)], gated)?[0])
}
