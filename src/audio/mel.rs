//! The log-mel spectrogram of Whisper.
//!
//! A frame is the power spectrum of 400 samples around every 160th one, in a Hann window, summed by triangles that are even on the
//! mel scale. Its logarithm is limited to the loudest value minus 8, and shifted and scaled by 4.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision"; transformers'
//! `WhisperFeatureExtractor`. The mel scale is that of Slaney 1998, "Auditory Toolbox".

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use super::SAMPLE_RATE;

/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Samples of a frame.
const FRAME: usize = 400;
/// Samples before the middle of a frame.
const HALF: usize = FRAME / 2;
/// Frequencies of a spectrum.
const FREQUENCIES: usize = FRAME / 2 + 1;
/// The least power whose logarithm is taken.
const LEAST_POWER: f64 = 1e-10;

/// The weights of neighbouring frequencies in one mel bin.
#[derive(Debug)]
struct Triangle {
    first: usize,
    weights: Vec<f64>,
}

/// Computes spectrograms.
pub struct LogMel {
    window: [f64; FRAME],
    triangles: Vec<Triangle>,
    fft: Arc<dyn RealToComplex<f64>>,
}

impl std::fmt::Debug for LogMel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogMel({} bins)", self.bins())
    }
}

impl LogMel {
    /// Spectrograms of this many mel bins.
    #[must_use]
    pub fn new(bins: usize) -> Self {
        let window = std::array::from_fn(|index| 0.5 - 0.5 * (2.0 * PI * index as f64 / FRAME as f64).cos());
        LogMel { window, triangles: triangles(bins), fft: RealFftPlanner::new().plan_fft_forward(FRAME) }
    }

    /// Mel bins of a frame.
    #[must_use]
    pub fn bins(&self) -> usize {
        self.triangles.len()
    }

    /// [frames, bins]: the spectrogram of samples, one frame for every whole hop. Samples before the first and after the last are
    /// mirrored; fewer than half a frame are followed by silence.
    #[must_use]
    pub fn spectrogram(&self, samples: &[f32]) -> Vec<f32> {
        let mut spectrum = Spectrum::new(self);
        let mut values: Vec<f32> = Vec::with_capacity(samples.len() / HOP * self.bins());
        for frame in 0..samples.len() / HOP {
            spectrum.take(samples, frame);
            values.extend(spectrum.logarithms());
        }
        let least = values.iter().copied().fold(f32::MIN, f32::max) - 8.0;
        values.iter_mut().for_each(|value| *value = (value.max(least) + 4.0) / 4.0);
        values
    }
}

/// The sample at a position, which may be before the first or after the last one.
fn mirrored(samples: &[f32], position: isize) -> f32 {
    let last = samples.len().max(HALF + 1) as isize - 1;
    let within = if position > last { 2 * last - position } else { position.abs() };
    samples.get(within as usize).copied().unwrap_or(0.0)
}

/// The buffers of a transform.
struct Spectrum<'a> {
    mel: &'a LogMel,
    input: Vec<f64>,
    output: Vec<realfft::num_complex::Complex<f64>>,
    scratch: Vec<realfft::num_complex::Complex<f64>>,
}

impl<'a> Spectrum<'a> {
    fn new(mel: &'a LogMel) -> Self {
        let (input, output) = (mel.fft.make_input_vec(), mel.fft.make_output_vec());
        Spectrum { mel, input, output, scratch: mel.fft.make_scratch_vec() }
    }

    /// Takes the samples of a frame, in the window.
    fn take(&mut self, samples: &[f32], frame: usize) {
        let first = (frame * HOP) as isize - HALF as isize;
        for ((position, input), factor) in (first..).zip(&mut self.input).zip(&self.mel.window) {
            *input = f64::from(mirrored(samples, position)) * factor;
        }
    }

    /// The logarithm of the power of the frame in each mel bin.
    fn logarithms(&mut self) -> impl Iterator<Item = f32> {
        self.mel
            .fft
            .process_with_scratch(&mut self.input, &mut self.output, &mut self.scratch)
            .expect("the buffers have the lengths of the transform");
        let powers: Vec<f64> = self.output.iter().map(|value| value.norm_sqr()).collect();
        self.mel.triangles.iter().map(move |triangle| {
            let products = triangle.weights.iter().zip(&powers[triangle.first..]).map(|(weight, power)| weight * power);
            products.sum::<f64>().max(LEAST_POWER).log10() as f32
        })
    }
}

/// Triangles of equal area, each from the middle of the one before to that of the one after it.
fn triangles(bins: usize) -> Vec<Triangle> {
    let highest = mel_of(SAMPLE_RATE as f64 / 2.0);
    let edges: Vec<f64> = (0..bins + 2).map(|edge| hertz_of(highest * edge as f64 / (bins + 1) as f64)).collect();
    edges.windows(3).map(|edges| triangle([edges[0], edges[1], edges[2]])).collect()
}

fn triangle([low, middle, high]: [f64; 3]) -> Triangle {
    let step = SAMPLE_RATE as f64 / FRAME as f64;
    let weight = |index: usize| {
        let frequency = index as f64 * step;
        let height = ((frequency - low) / (middle - low)).min((high - frequency) / (high - middle));
        height.max(0.0) * 2.0 / (high - low)
    };
    let first = ((low / step).ceil() as usize).min(FREQUENCIES - 1);
    let last = ((high / step).floor() as usize).min(FREQUENCIES - 1);
    Triangle { first, weights: (first..=last).map(weight).collect() }
}

/// Up to this frequency the scale is linear.
const LINEAR_HERTZ: f64 = 1000.0;
/// Hertz of a mel there.
const HERTZ_OF_MEL: f64 = 200.0 / 3.0;
/// Mels of a factor of e above it.
fn mels_of_factor() -> f64 {
    27.0 / 6.4_f64.ln()
}

fn mel_of(hertz: f64) -> f64 {
    if hertz < LINEAR_HERTZ {
        return hertz / HERTZ_OF_MEL;
    }
    LINEAR_HERTZ / HERTZ_OF_MEL + (hertz / LINEAR_HERTZ).ln() * mels_of_factor()
}

fn hertz_of(mel: f64) -> f64 {
    let linear = LINEAR_HERTZ / HERTZ_OF_MEL;
    if mel < linear { mel * HERTZ_OF_MEL } else { LINEAR_HERTZ * ((mel - linear) / mels_of_factor()).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_the_bin_around_its_frequency() {
        let mel = LogMel::new(80);
        let tone: Vec<f32> =
            (0..1600).map(|index| (2.0 * PI * 1000.0 * index as f64 / 16_000.0).sin() as f32).collect();
        let frames = mel.spectrogram(&tone);
        assert_eq!(frames.len(), 10 * 80);
        let frame = &frames[5 * 80..][..80];
        let loudest = (0..80).max_by(|a, b| frame[*a].total_cmp(&frame[*b])).unwrap_or_default();
        let step = mel_of(8000.0) / 81.0;
        let [low, high] = [loudest, loudest + 2].map(|edge| hertz_of(step * edge as f64));
        assert!(low < 1000.0 && high > 1000.0, "{low} {high}");
    }

    #[test]
    fn samples_are_mirrored_without_the_first_and_the_last() {
        let samples: Vec<f32> = (0..300).map(|index| index as f32).collect();
        let at = |position| mirrored(&samples, position);
        assert_eq!([-200, -1, 0, 299, 300, 499].map(at), [200.0, 1.0, 0.0, 299.0, 298.0, 99.0]);
        assert_eq!((mirrored(&[1.0], 0), mirrored(&[1.0], -1), mirrored(&[1.0], 400)), (1.0, 0.0, 1.0));
    }

    #[test]
    fn silence_is_even_and_the_scale_is_its_own_inverse() {
        let frames = LogMel::new(128).spectrogram(&[0.0; 1600]);
        assert!(frames.iter().all(|value| *value == -1.5));
        for hertz in [0.0, 440.0, 1000.0, 5000.0] {
            assert!((hertz_of(mel_of(hertz)) - hertz).abs() < 1e-6);
        }
    }
}
