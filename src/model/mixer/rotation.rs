//! The rotation of queries and keys by their position.

use std::sync::Arc;

use cuelight_shaders::heads::{JoinHeads, SplitHeads};
use cuelight_shaders::rope::Rope;

use crate::graph::ValueId;
use crate::model::arch::{RopePairs, UnwindowedRotary};
use crate::model::builder::{BuildError, Builder};
use crate::model::layer::RopeSpec;
use crate::model::rope::frequencies;

/// Rotates heads of `head_dim` values, of which the first `rotary_dim` form pairs.
pub(super) fn rotate(
    builder: &mut Builder<'_>,
    rotation: (RopeSpec, usize),
    head_dim: usize,
    values: &[ValueId],
) -> Result<Vec<ValueId>, BuildError> {
    rotate_pairs(builder, rotation, (head_dim, rotation.0.pairs), values)
}

/// As [`rotate`], with these pairs.
pub(super) fn rotate_pairs(
    builder: &mut Builder<'_>,
    rotation: (RopeSpec, usize),
    head: (usize, RopePairs),
    values: &[ValueId],
) -> Result<Vec<ValueId>, BuildError> {
    let op = rope_op(builder, rotation, head)?;
    Ok(builder.graph.push(op, values)?)
}

/// As [`rotate_pairs`], but the last `rotary_dim` values of each head.
pub(super) fn rotate_last(
    builder: &mut Builder<'_>,
    (rope, rotary_dim): (RopeSpec, usize),
    (head_dim, pairs): (usize, RopePairs),
    values: &[ValueId],
) -> Result<Vec<ValueId>, BuildError> {
    let first = head_dim - rotary_dim;
    if first == 0 {
        return rotate_pairs(builder, (rope, rotary_dim), (head_dim, pairs), values);
    }
    let (mut others, mut last) = (Vec::new(), Vec::new());
    for value in values {
        let sections = builder.graph.push(SplitHeads { first, second: rotary_dim }, &[*value])?;
        others.push(sections[0]);
        last.push(sections[1]);
    }
    let rotated = rotate_pairs(builder, (rope, rotary_dim), (rotary_dim, pairs), &last)?;
    let join = |(other, rotated)| builder.graph.push_one(JoinHeads { first, second: rotary_dim }, &[other, rotated]);
    Ok(others.into_iter().zip(rotated).map(join).collect::<Result<_, _>>()?)
}

/// The op that rotates heads of `head_dim` values with these pairs.
pub(super) fn rope_op(
    builder: &mut Builder<'_>,
    (rope, rotary_dim): (RopeSpec, usize),
    (head_dim, pairs): (usize, RopePairs),
) -> Result<Rope, BuildError> {
    let factors = match rope.factors {
        Some(tensor) => Some(divisors(builder, tensor, rotary_dim / 2)?),
        None => None,
    };
    let frequencies = frequencies(rope.base, rotary_dim, rope.scaling, factors.as_deref());
    Ok(Rope::new(head_dim, pairs, frequencies.into(), rope.magnitude)?.with_axes(rope.axes))
}

/// The divisors of the frequencies of the first `pairs` pairs. Where layers rotate different numbers of values, the tensor is as
/// long as for the most.
fn divisors(builder: &mut Builder<'_>, tensor: &str, pairs: usize) -> Result<Arc<[f32]>, BuildError> {
    let is_shared = builder.family.attention.unwindowed_rotary == UnwindowedRotary::Half;
    let stored = builder.weights.columns(tensor).filter(|_| is_shared).unwrap_or(pairs).max(pairs);
    Ok(builder.weights.vector(tensor, stored)?[..pairs].into())
}
