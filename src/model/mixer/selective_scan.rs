//! The selective scan of Mamba 1 as a mixer.

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::selective_scan::SelectiveScan;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::ScanLayer;

/// Appends a mixer with a selective scan: project to x and a gate, convolve x, project dt, B and C from it, scan, gate, project
/// back.
///
/// Source: Gu & Dao 2023, "Mamba".
pub(super) fn selective_scan(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &ScanLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let (shape, [conv_state, state]) = (sizes.shape, sizes.state_parts(layer));
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    let projected = builder.linear_parts(layer, ("ssm_in", &[shape.channels; 2]), x)?;

    let weight = builder.weights.matrix(&name("ssm_conv1d.weight"), shape.channels, sizes.conv_width)?;
    let bias = builder.weights.optional_vector(&name("ssm_conv1d.bias"), shape.channels)?;
    let conv = CausalConv::new(&weight.to_f32(), sizes.conv_width, bias.as_deref(), conv_state)?.with_silu();
    let mixed = builder.graph.push_one(conv, &[projected[0]])?;

    let [dt, b, c] = selected(builder, layer, sizes, mixed)?;
    let a = builder.weights.matrix(&name("ssm_a"), shape.channels, shape.state_dim)?.to_f32();
    let d = builder.weights.vector(&name("ssm_d"), shape.channels)?;
    let scan = SelectiveScan::new(shape, &a, d, state)?;
    let output = builder.graph.push_one(scan, &[mixed, dt, b, c])?;
    let gated = builder.graph.push_one(Glu::new(Activation::Silu), &[projected[1], output])?;
    Ok(builder.linear(layer, &[("ssm_out", builder.h.hidden_size)], gated)?[0])
}

/// dt, B and C of each row. dt comes from a projection through few values. These, B and C are normalised where the layer does.
fn selected(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &ScanLayer,
    x: ValueId,
) -> Result<[ValueId; 3], BuildError> {
    let (channels, state_dim) = (sizes.shape.channels, sizes.shape.state_dim);
    let projected = builder.linear_parts(layer, ("ssm_x", &[sizes.rank, state_dim, state_dim]), x)?;
    let mut normed = [projected[0], projected[1], projected[2]];
    for (value, kind) in normed.iter_mut().zip(["dt", "b", "c"]) {
        let tensor = format!("blk.{layer}.ssm_{kind}_norm.weight");
        let width = builder.graph.width(*value);
        if builder.weights.has(&tensor) {
            *value = builder.grouped_norm(&tensor, width, *value)?;
        } else if let Some(epsilon) = sizes.unweighted_epsilon {
            *value = builder.graph.push_one(RmsNorm::new(vec![1.0; width].into(), epsilon), &[*value])?;
        }
    }
    let [rank, b, c] = normed;
    Ok([builder.linear(layer, &[("ssm_dt", channels)], rank)?[0], b, c])
}
