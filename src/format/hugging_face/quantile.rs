//! Quantiles of the normal distribution.

/// How many deviations above its mean a normally distributed value is with the probability 1 - `part`; minus infinity for a part
/// of 0.
pub(super) fn normal_quantile(part: f64) -> f32 {
    if part <= 0.0 {
        return f32::NEG_INFINITY;
    }
    // Nothing is further from the mean in double precision. Each step halves the range, down to its last digits.
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if probability_below(middle) < part {
            low = middle;
        } else {
            high = middle;
        }
    }
    #[allow(clippy::cast_possible_truncation)] // Keys of files are float32.
    let nearest = high as f32;
    nearest
}

/// The probability of a value below `x`: a half plus the density times the series `x + x^3/3 + x^5/(3*5) + ...`.
fn probability_below(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let (mut term, mut sum, mut divisor) = (x, x, 1.0);
    while term.abs() > f64::EPSILON * sum.abs() {
        divisor += 2.0;
        term *= x * x / divisor;
        sum += term;
    }
    0.5 + density * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_published_tables() {
        for (part, expected) in [(0.5, 0.0), (0.95, 1.644_853_6), (0.975, 1.959_964), (0.1, -1.281_551_6)] {
            assert!((normal_quantile(part) - expected).abs() < 1e-6, "{part}");
        }
        assert_eq!(normal_quantile(0.0), f32::NEG_INFINITY);
        assert!(normal_quantile(0.999_999).is_finite());
    }
}
