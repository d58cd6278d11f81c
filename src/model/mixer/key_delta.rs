//! The gated delta rule with a decay for each key as a mixer.

use std::sync::Arc;

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::gated_delta::{DecayForm, GatedDelta};
use cuelight_shaders::glu::Glu;
use cuelight_shaders::heads::JoinHeads;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::DeltaLayer;

/// Appends a mixer with the delta rule: project, convolve, apply the rule, norm each head, gate, project back. Decays and gates
/// come from one projection each, or from two through few values.
///
/// Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture".
pub(super) fn key_delta(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &DeltaLayer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let shape = sizes.shape;
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    let [_, state] = sizes.state_parts(layer);
    let mixed = convolved(builder, layer, sizes, x)?;
    let heads = shape.value_heads;
    let decay = ["ssm_f_a", "ssm_f_b"];
    // The gate's only projection has another name in some files.
    let gate = [if builder.weights.has(&name("ssm_g.weight")) { "ssm_g" } else { "ssm_g_a" }, "ssm_g_b"];
    let [first_of_decay, first_of_gate] =
        [decay, gate].map(|stems| (stems[0], first_width(builder, layer, sizes, stems)));
    let projected = builder.linear(layer, &[first_of_decay, first_of_gate, ("ssm_beta", heads)], x)?;
    let decay = second_projection(builder, layer, sizes, (decay[1], projected[0]))?;
    let gate = second_projection(builder, layer, sizes, (gate[1], projected[1]))?;

    let a = decay_factors(builder, layer, sizes)?;
    let dt_bias = builder.weights.vector(&name("ssm_dt.bias"), shape.value_width())?;
    let rule = GatedDelta::new(shape, a, dt_bias, state)?.with_decays(sizes.decays);
    let output = builder.graph.push_one(rule, &[mixed, decay, projected[2]])?;

    let normed = builder.grouped_norm(&name("ssm_norm.weight"), shape.value_dim, output)?;
    let gated = builder.graph.push_one(Glu::new(sizes.gate), &[gate, normed])?;
    Ok(builder.linear(layer, &[("attn_output", builder.h.hidden_size)], gated)?[0])
}

/// The factor of the decays of each head. Files have a vector or a column.
fn decay_factors(builder: &mut Builder<'_>, layer: usize, sizes: &DeltaLayer) -> Result<Arc<[f32]>, BuildError> {
    let (name, heads) = (format!("blk.{layer}.ssm_a"), sizes.shape.value_heads);
    let is_column = builder.weights.rows(&name) == Some(heads);
    let stored: Arc<[f32]> = match is_column {
        true => builder.weights.matrix(&name, heads, 1)?.to_f32().into(),
        false => builder.weights.vector(&name, heads)?,
    };
    Ok(match sizes.decays {
        DecayForm::Softplus => stored,
        // Files of some architectures have the negative factors of the other form here.
        DecayForm::Bounded(_) => stored.iter().map(|a| a.abs()).collect(),
    })
}

/// The outputs of the first of two projections: all of them if the file has no second one.
fn first_width(builder: &Builder<'_>, layer: usize, sizes: &DeltaLayer, [_, second]: [&str; 2]) -> usize {
    let has_second = builder.weights.has(&format!("blk.{layer}.{second}.weight"));
    if has_second { sizes.shape.key_dim } else { sizes.shape.value_width() }
}

/// The second of two projections, where the file has it.
fn second_projection(
    builder: &mut Builder<'_>,
    layer: usize,
    sizes: &DeltaLayer,
    (stem, x): (&str, ValueId),
) -> Result<ValueId, BuildError> {
    if !builder.weights.has(&format!("blk.{layer}.{stem}.weight")) {
        return Ok(x);
    }
    Ok(builder.linear(layer, &[(stem, sizes.shape.value_width())], x)?[0])
}

/// Queries, keys and values one after another, convolved.
fn convolved(builder: &mut Builder<'_>, layer: usize, sizes: &DeltaLayer, x: ValueId) -> Result<ValueId, BuildError> {
    let (width, [conv_state, _]) = (sizes.shape.value_width(), sizes.state_parts(layer));
    let projected = builder.linear(layer, &[("attn_q", width), ("attn_k", width), ("attn_v", width)], x)?;
    let join = |first: usize| JoinHeads { first, second: width };
    let joined = builder.graph.push_one(join(width), &[projected[0], projected[1]])?;
    let mixed = builder.graph.push_one(join(2 * width), &[joined, projected[2]])?;
    let mut weights = Vec::new();
    for kind in ["q", "k", "v"] {
        let tensor = format!("blk.{layer}.ssm_conv1d_{kind}.weight");
        weights.extend(builder.weights.matrix(&tensor, width, sizes.conv_width)?.to_f32());
    }
    let conv = CausalConv::new(&weights, sizes.conv_width, None, conv_state)?.with_silu();
    Ok(builder.graph.push_one(conv, &[mixed])?)
}
