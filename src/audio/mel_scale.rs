//! Scales of frequency, and the triangles that sum a spectrum evenly on them.

use super::SAMPLE_RATE;

/// A scale of frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MelScale {
    /// Linear up to 1000 Hz, with triangles of equal area. Source: Slaney 1998, "Auditory Toolbox".
    Slaney,
    /// Logarithmic, with triangles of equal height. Source: Young et al. 2006, "The HTK Book".
    Htk,
}

/// The weights of neighbouring frequencies in one mel bin.
#[derive(Debug)]
pub(super) struct Triangle {
    pub first: usize,
    pub weights: Vec<f64>,
}

impl MelScale {
    /// Triangles for the spectrum of `transform` samples, each from the middle of the one before to that of the one after it.
    pub(super) fn triangles(self, bins: usize, transform: usize) -> Vec<Triangle> {
        let highest = self.mel_of(SAMPLE_RATE as f64 / 2.0);
        let edge = |edge: usize| self.hertz_of(highest * edge as f64 / (bins + 1) as f64);
        let edges: Vec<f64> = (0..bins + 2).map(edge).collect();
        edges.windows(3).map(|edges| self.triangle([edges[0], edges[1], edges[2]], transform)).collect()
    }

    fn triangle(self, [low, middle, high]: [f64; 3], transform: usize) -> Triangle {
        let step = SAMPLE_RATE as f64 / transform as f64;
        let weight = |index: usize| {
            let frequency = index as f64 * step;
            let height = ((frequency - low) / (middle - low)).min((high - frequency) / (high - middle));
            match self {
                MelScale::Slaney => height.max(0.0) * 2.0 / (high - low),
                MelScale::Htk => height.max(0.0),
            }
        };
        let last_of_all = transform / 2;
        let first = ((low / step).ceil() as usize).min(last_of_all);
        let last = ((high / step).floor() as usize).min(last_of_all);
        Triangle { first, weights: (first..=last).map(weight).collect() }
    }

    pub(super) fn mel_of(self, hertz: f64) -> f64 {
        match self {
            MelScale::Slaney if hertz < LINEAR_HERTZ => hertz / HERTZ_OF_MEL,
            MelScale::Slaney => LINEAR_HERTZ / HERTZ_OF_MEL + (hertz / LINEAR_HERTZ).ln() * mels_of_factor(),
            MelScale::Htk => HTK_MELS * (1.0 + hertz / HTK_HERTZ).log10(),
        }
    }

    pub(super) fn hertz_of(self, mel: f64) -> f64 {
        let linear = LINEAR_HERTZ / HERTZ_OF_MEL;
        match self {
            MelScale::Slaney if mel < linear => mel * HERTZ_OF_MEL,
            MelScale::Slaney => LINEAR_HERTZ * ((mel - linear) / mels_of_factor()).exp(),
            MelScale::Htk => HTK_HERTZ * (10.0_f64.powf(mel / HTK_MELS) - 1.0),
        }
    }
}

/// Up to this frequency the scale is linear.
const LINEAR_HERTZ: f64 = 1000.0;
/// Hertz of a mel there.
const HERTZ_OF_MEL: f64 = 200.0 / 3.0;
/// Mels of a factor of e above it.
fn mels_of_factor() -> f64 {
    27.0 / 6.4_f64.ln()
}

/// Mels of a factor of 10.
const HTK_MELS: f64 = 2595.0;
/// The frequency that is added before the logarithm.
const HTK_HERTZ: f64 = 700.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scales_are_their_own_inverses() {
        for scale in [MelScale::Slaney, MelScale::Htk] {
            for hertz in [0.0, 440.0, 1000.0, 5000.0] {
                assert!((scale.hertz_of(scale.mel_of(hertz)) - hertz).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn triangles_have_equal_areas_or_equal_heights() {
        for (scale, bins, transform) in [(MelScale::Slaney, 40, 400), (MelScale::Htk, 20, 512)] {
            let triangles = scale.triangles(bins, transform);
            assert_eq!(triangles.len(), bins);
            let step = SAMPLE_RATE as f64 / transform as f64;
            for triangle in &triangles[bins / 2..bins - 1] {
                let area: f64 = triangle.weights.iter().sum::<f64>() * step;
                let height = triangle.weights.iter().copied().fold(0.0, f64::max);
                let is_even =
                    if scale == MelScale::Slaney { (area - 1.0).abs() < 0.1 } else { (0.8..=1.0).contains(&height) };
                assert!(is_even, "{scale:?} {area} {height}");
            }
        }
    }
}
