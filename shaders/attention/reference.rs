//! Attention in float64, over contiguous rows.

use super::{Attention, RowsInStep};
use crate::kv::KvShape;
use crate::op::Sight;

/// The output of one row, [n_heads * value_dim].
///
/// `query` is [positions, n_heads * key_dim], `key` and `value` [positions, n_kv_heads * their dim] of one sequence;
/// `value` is not read where values are part of the keys. If the attention is to selected positions, these are `selected`.
#[must_use]
pub fn attend(
    attention: &Attention,
    (position, selected): (usize, Option<&[usize]>),
    query: &[f32],
    key: &[f32],
    value: &[f32],
) -> Vec<f64> {
    let end = key.len() / (attention.kv.n_kv_heads * attention.kv.key_dim);
    let visible: Vec<usize> = match selected {
        Some(selected) => selected.to_vec(),
        None => attention.visible(position, RowsInStep { sight: Sight::Before, start: position, end }).collect(),
    };
    attend_to(attention, position, &visible, [query, key, value])
}

/// The output of a row that sees these positions, as [`attend`].
#[must_use]
pub fn attend_to(
    attention: &Attention,
    position: usize,
    visible: &[usize],
    [query, key, value]: [&[f32]; 3],
) -> Vec<f64> {
    let Attention { n_heads, kv: KvShape { n_kv_heads, key_dim, value_dim, values_in_keys }, .. } = *attention;
    let mut output = Vec::with_capacity(n_heads * value_dim);
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let q = &query[(position * n_heads + head) * key_dim..][..key_dim];
        let key_of = |t: usize| &key[(t * n_kv_heads + kv_head) * key_dim..][..key_dim];
        let value_of = |t: usize| match values_in_keys {
            true => &key_of(t)[..value_dim],
            false => &value[(t * n_kv_heads + kv_head) * value_dim..][..value_dim],
        };
        let scores: Vec<f64> = visible
            .iter()
            .map(|&t| {
                let product: f64 = q.iter().zip(key_of(t)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let score = product * f64::from(attention.scale);
                let capped = attention.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                let slope = attention.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                capped - slope * position.abs_diff(t) as f64
            })
            .collect();
        let sink = attention.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
        let mut y = vec![0.0; value_dim];
        for (t, score) in visible.iter().copied().zip(&scores) {
            let weight = (score - max).exp() / sum;
            for (y, v) in y.iter_mut().zip(value_of(t)) {
                *y += weight * f64::from(*v);
            }
        }
        output.extend(y);
    }
    output
}
