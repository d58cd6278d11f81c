//! Attention in float64, over contiguous rows.

use super::{Attention, Cell, RowsInStep};
use crate::kv::KvShape;
use crate::op::Sight;

/// The output of one row, [n_heads * value_dim].
///
/// `query` is [positions, n_heads * key_dim], `key` and `value` [positions, n_kv_heads * their dim] of one sequence;
/// `value` is not read where values are part of the keys, and has entries where there are pools. If the attention is to selected
/// positions or pools, these are the lists of `selected`.
#[must_use]
pub fn attend(
    attention: &Attention,
    (position, selected): (usize, Option<&[Vec<usize>]>),
    query: &[f32],
    key: &[f32],
    value: &[f32],
) -> Vec<f64> {
    let end = key.len() / (attention.kv.n_kv_heads * attention.kv.key_dim);
    let pool = attention.kv.pool;
    let entry = |index: usize| Cell { position: (index + 1) * pool - 1, is_entry: true };
    let of_position = |position: usize| Cell { position, is_entry: false };
    let visible = |selected: Option<&Vec<usize>>| -> Vec<Cell> {
        match selected {
            Some(selected) if pool == 0 => selected.iter().copied().map(of_position).collect(),
            None if pool == 0 => {
                let rows = RowsInStep { sight: Sight::Before, start: position, end };
                attention.visible(position, rows).map(of_position).collect()
            }
            selected => {
                let all = || (0..(position + 1) / pool).collect();
                let entries = selected.cloned().unwrap_or_else(all);
                let window = attention.first_visible(position)..position + 1;
                entries.into_iter().map(entry).chain(window.map(of_position)).collect()
            }
        }
    };
    let visible: Vec<Vec<Cell>> = match selected {
        Some(lists) => lists.iter().map(|list| visible(Some(list))).collect(),
        None => vec![visible(None)],
    };
    attend_to(attention, position, &visible, [query, key, value])
}

/// The output of a row whose heads, in as many groups of adjacent ones, see these cells, as [`attend`].
pub(super) fn attend_to(
    attention: &Attention,
    position: usize,
    visible: &[Vec<Cell>],
    [query, key, value]: [&[f32]; 3],
) -> Vec<f64> {
    let Attention { n_heads, kv: KvShape { n_kv_heads, key_dim, value_dim, values_in_keys, .. }, .. } = *attention;
    let mut output = Vec::with_capacity(n_heads * value_dim);
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let visible = &visible[kv_head * visible.len() / n_kv_heads];
        let q = &query[(position * n_heads + head) * key_dim..][..key_dim];
        let key_of = |cell: Cell| {
            let keys = if cell.is_entry { value } else { key };
            &keys[(cell.position * n_kv_heads + kv_head) * key_dim..][..key_dim]
        };
        let value_of = |cell: Cell| match values_in_keys {
            true => &key_of(cell)[..value_dim],
            false => &value[(cell.position * n_kv_heads + kv_head) * value_dim..][..value_dim],
        };
        let scores: Vec<f64> = visible
            .iter()
            .map(|&cell| {
                let product: f64 = q.iter().zip(key_of(cell)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let score = product * f64::from(attention.scale);
                let capped = attention.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                let slope = attention.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                capped - slope * position.abs_diff(cell.position) as f64
            })
            .collect();
        let sink = attention.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
        let mut y = vec![0.0; value_dim];
        for (cell, score) in visible.iter().copied().zip(&scores) {
            let weight = (score - max).exp() / sum;
            for (y, v) in y.iter_mut().zip(value_of(cell)) {
                *y += weight * f64::from(*v);
            }
        }
        output.extend(y);
    }
    output
}
