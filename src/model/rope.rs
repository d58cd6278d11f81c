//! Rotary frequencies and the rules that scale them for long contexts.

use std::f32::consts::PI;

/// How rotary frequencies are scaled for contexts longer than in training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All are divided by one factor, so positions are interpolated.
    Linear {
        /// The new context length over the old.
        factor: f32,
    },
    /// Low frequencies are interpolated and high ones kept, with a ramp between (Peng et al. 2023, "YaRN").
    Yarn {
        /// The new context length over the old.
        factor: f32,
        /// The old context length in tokens.
        original_context: usize,
        /// Frequencies with more full rotations than this within the original context are kept.
        beta_fast: f32,
        /// Frequencies with fewer full rotations than this are interpolated.
        beta_slow: f32,
        /// Whether the ramp starts and ends at whole pairs.
        whole_pairs: bool,
    },
}

/// YaRN's attention temperature for a context `factor` times as long as in training.
#[must_use]
pub fn yarn_magnitude(factor: f32, strength: f32) -> f32 {
    if factor > 1.0 { 0.1 * strength * factor.ln() + 1.0 } else { 1.0 }
}

/// The rotary frequencies `base^(-2i / rotary_dim)`, [rotary_dim / 2] radians per position, scaled by the rule and divided by
/// the file's factors where it has them.
///
/// `factors` is [rotary_dim / 2], as in the tensor `rope_freqs.weight` (Llama 3's rule comes in this form).
#[must_use]
pub fn frequencies(base: f32, rotary_dim: usize, scaling: RopeScaling, factors: Option<&[f32]>) -> Vec<f32> {
    let plain = (0..rotary_dim / 2).map(|i| base.powf(-(2.0 * i as f32) / rotary_dim as f32));
    let mut values: Vec<f32> = match scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, whole_pairs } => {
            // The (fractional) pair that makes this many rotations within the original context.
            let pair_with = |rotations: f32| {
                rotary_dim as f32 * (original_context as f32 / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln())
            };
            let last = (rotary_dim - 1) as f32;
            let (low, high) = (pair_with(beta_fast), pair_with(beta_slow));
            let (low, high) = if whole_pairs { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.clamp(0.0, last), high.clamp(0.0, last));
            let span = if low == high { 0.001 } else { high - low };
            let stretch = |(i, frequency): (usize, f32)| {
                let interpolated = ((i as f32 - low) / span).clamp(0.0, 1.0);
                frequency / factor * interpolated + frequency * (1.0 - interpolated)
            };
            plain.enumerate().map(stretch).collect()
        }
    };
    for (value, factor) in values.iter_mut().zip(factors.unwrap_or_default()) {
        *value /= factor;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_frequencies_are_a_geometric_series_from_one() {
        let series = frequencies(10_000.0, 8, RopeScaling::None, None);
        for (found, expected) in series.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((found / expected - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn frequencies_are_divided_by_the_factors_of_the_file() {
        let plain = frequencies(500_000.0, 8, RopeScaling::None, None);
        let scaled = frequencies(500_000.0, 8, RopeScaling::None, Some(&[1.0, 1.0, 4.0, 8.0]));
        assert_eq!(scaled, [plain[0], plain[1], plain[2] / 4.0, plain[3] / 8.0]);
    }

    #[test]
    fn yarn_keeps_fast_frequencies_and_interpolates_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: true,
        };
        let plain = frequencies(10_000.0, 128, RopeScaling::None, None);
        let yarn = frequencies(10_000.0, 128, scaling, None);
        assert_eq!(yarn[0], plain[0]);
        assert_eq!(yarn[63], plain[63] / 4.0);
        assert!((yarn_magnitude(4.0, 1.0) - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    }
}
