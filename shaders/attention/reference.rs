//! Attention in float64, over plain contiguous rows.

use super::Attention;

/// One row's output, [n_heads * head_dim].
///
/// `query` is [positions, n_heads * head_dim], `key` and `value` [positions, n_kv_heads * head_dim] of one sequence.
#[must_use]
pub fn attend(attention: &Attention, position: usize, query: &[f32], key: &[f32], value: &[f32]) -> Vec<f64> {
    let Attention { n_heads, n_kv_heads, head_dim, .. } = *attention;
    let visible = attention.first_visible(position)..position + 1;
    let mut output = Vec::with_capacity(n_heads * head_dim);
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let q = &query[(position * n_heads + head) * head_dim..][..head_dim];
        let kv_row = |rows: &[f32], t: usize| rows[(t * n_kv_heads + kv_head) * head_dim..][..head_dim].to_vec();
        let scores: Vec<f64> = visible
            .clone()
            .map(|t| {
                let product: f64 = q.iter().zip(kv_row(key, t)).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                let score = product * f64::from(attention.scale);
                attention.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut y = vec![0.0; head_dim];
        for (t, score) in visible.clone().zip(&scores) {
            let weight = (score - max).exp() / sum;
            for (y, v) in y.iter_mut().zip(kv_row(value, t)) {
                *y += weight * f64::from(v);
            }
        }
        output.extend(y);
    }
    output
}
