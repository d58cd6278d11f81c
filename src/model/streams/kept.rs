//! Earlier residuals that are kept, of which each half of a layer reads a mean with the residual.
//!
//! Source: Kimi Team 2026, "Kimi K3", attention residuals.

use cuelight_shaders::heads::JoinHeads;
use cuelight_shaders::mix_residuals::MixResiduals;

use crate::graph::ValueId;
use crate::model::builder::{BuildError, Builder};

/// The mean of the residual `x` and of what is kept, by the vector in `tensor`; `x` itself while nothing is kept.
pub(super) fn read(builder: &mut Builder<'_>, tensor: &str, x: ValueId) -> Result<ValueId, BuildError> {
    let width = builder.h.hidden_size;
    let weight = builder.weights.vector(tensor, width)?;
    let Some(kept) = builder.kept_residuals else { return Ok(x) };
    let op = MixResiduals::new(builder.graph.width(kept) / width, weight, builder.h.norm_epsilon)?;
    Ok(builder.graph.push_one(op, &[kept, x])?)
}

/// Keeps the residual `x`, behind those that are kept.
pub(super) fn keep(builder: &mut Builder<'_>, x: ValueId) -> Result<(), BuildError> {
    let joined = match builder.kept_residuals {
        Some(kept) => {
            let [first, second] = [kept, x].map(|value| builder.graph.width(value));
            builder.graph.push_one(JoinHeads { first, second }, &[kept, x])?
        }
        None => x,
    };
    builder.kept_residuals = Some(joined);
    Ok(())
}
