//! The state space of Mamba 2 as a mixer.

use std::sync::Arc;

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::rms_norm::RmsNorm;
use cuelight_shaders::state_space::{SpaceWeights, StateSpace};

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::SpaceLayer;

/// Appends a mixer with a state space: project, convolve, apply the state space, gate, norm each group if the file has a norm,
/// project back.
///
/// Source: Dao & Gu 2024, "Transformers are SSMs".
pub(super) fn state_space(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &SpaceLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let (shape, mixed_width) = (sizes.shape, sizes.shape.mixed_width());
    let [conv_state, state] = sizes.state_parts(layer);
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    let projected = builder.linear_parts(layer, ("ssm_in", &[shape.width(), mixed_width, shape.heads]), x)?;

    let weight = builder.weights.matrix(&name("ssm_conv1d.weight"), mixed_width, sizes.conv_width)?;
    let bias = builder.weights.optional_vector(&name("ssm_conv1d.bias"), mixed_width)?;
    let conv = CausalConv::new(&weight.to_f32(), sizes.conv_width, bias.as_deref(), conv_state)?.with_silu();
    let mixed = builder.graph.push_one(conv, &[projected[1]])?;

    let mut column = |tensor: &str| -> Result<Arc<[f32]>, BuildError> {
        Ok(builder.weights.matrix(&name(tensor), shape.heads, 1)?.to_f32().into())
    };
    let (a, d) = (column("ssm_a")?, column("ssm_d")?);
    let dt_bias = builder.weights.vector(&name("ssm_dt.bias"), shape.heads)?;
    let space = StateSpace::new(shape, SpaceWeights { a, d, dt_bias }, state)?;
    let output = builder.graph.push_one(space, &[mixed, projected[2]])?;

    let gated = builder.graph.push_one(Glu::new(Activation::Silu), &[projected[0], output])?;
    let group = shape.width() / shape.groups;
    let normed = match builder.weights.optional_matrix(&name("ssm_norm.weight"), shape.groups, group)? {
        None => gated,
        Some(weight) => {
            let norm = RmsNorm::of_groups(weight.to_f32().into(), group, builder.h.norm_epsilon)?;
            builder.graph.push_one(norm, &[gated])?
        }
    };
    Ok(builder.linear(layer, &[("ssm_out", builder.h.hidden_size)], normed)?[0])
}
