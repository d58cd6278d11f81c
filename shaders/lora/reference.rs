//! The float64 reference.

/// `y + scale B (A x)` of one row: y `[outputs]`, x `[columns]`, A [rank, columns], B [outputs, rank].
#[must_use]
pub fn reference(y: &[f32], x: &[f32], [a, b]: [&[f32]; 2], scale: f64) -> Vec<f64> {
    let dot = |a: &[f32], x: &[f64]| a.iter().zip(x).map(|(a, x)| f64::from(*a) * x).sum::<f64>();
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let h: Vec<f64> = a.chunks_exact(x.len()).map(|a| dot(a, &x)).collect();
    let change = b.chunks_exact(h.len()).map(|b| dot(b, &h));
    y.iter().zip(change).map(|(y, change)| f64::from(*y) + scale * change).collect()
}
