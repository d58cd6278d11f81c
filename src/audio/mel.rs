//! Log-mel spectrograms: the loudness of a clip at each time and frequency.
//!
//! A frame is the spectrum of some samples around every 160th one, in a Hann window, summed by triangles that are even on a mel
//! scale, and its logarithm.
//!
//! Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision"; transformers'
//! `WhisperFeatureExtractor`. Zhang et al. 2023, "Google USM"; transformers' `Gemma4AudioFeatureExtractor`.

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use super::mel_scale::{MelScale, Triangle};

/// Samples from one frame to the next.
pub const HOP: usize = 160;

/// How a spectrogram is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spectrogram {
    /// Samples of a frame.
    pub frame: usize,
    /// Samples that are transformed: those of a frame and zeros.
    pub transform: usize,
    /// The scale of frequency.
    pub scale: MelScale,
    /// What is before the first and after the last sample.
    pub edges: Edges,
    /// What is summed, and its logarithm.
    pub loudness: Loudness,
}

/// What is before the first and after the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edges {
    /// The samples mirrored at the first and the last one. Fewer than half a frame are followed by silence.
    Mirrored,
    /// Zeros before the first. A frame ends before the last sample.
    ZerosBefore,
}

/// What is summed, and its logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loudness {
    /// The decimal logarithm of the power, limited to the loudest one of a clip minus 8, and shifted and scaled by 4.
    Power,
    /// The natural logarithm of the magnitude plus this number.
    Magnitude(f64),
}

/// The spectrogram of Whisper.
pub const WHISPER: Spectrogram = Spectrogram {
    frame: 400,
    transform: 400,
    scale: MelScale::Slaney,
    edges: Edges::Mirrored,
    loudness: Loudness::Power,
};

/// The least power whose logarithm is taken.
const LEAST_POWER: f64 = 1e-10;

/// Computes spectrograms.
pub struct LogMel {
    spectrogram: Spectrogram,
    window: Vec<f64>,
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
    pub fn new(spectrogram: Spectrogram, bins: usize) -> Self {
        let Spectrogram { frame, transform, scale, .. } = spectrogram;
        let window = (0..frame).map(|index| 0.5 - 0.5 * (2.0 * PI * index as f64 / frame as f64).cos()).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(transform);
        LogMel { spectrogram, window, triangles: scale.triangles(bins, transform), fft }
    }

    /// Mel bins of a frame.
    #[must_use]
    pub fn bins(&self) -> usize {
        self.triangles.len()
    }

    /// The frames of a number of samples: one for every whole hop, or for every hop before the last sample.
    #[must_use]
    pub fn frames(&self, samples: usize) -> usize {
        match self.spectrogram.edges {
            Edges::Mirrored => samples / HOP,
            Edges::ZerosBefore => samples.saturating_sub(1) / HOP,
        }
    }

    /// [frames, bins]: the spectrogram of samples.
    #[must_use]
    pub fn spectrogram(&self, samples: &[f32]) -> Vec<f32> {
        let (mut spectrum, frames) = (Spectrum::new(self), self.frames(samples.len()));
        let mut values: Vec<f32> = Vec::with_capacity(frames * self.bins());
        for frame in 0..frames {
            spectrum.take(samples, frame);
            values.extend(spectrum.logarithms());
        }
        if self.spectrogram.loudness == Loudness::Power {
            let least = values.iter().copied().fold(f32::MIN, f32::max) - 8.0;
            values.iter_mut().for_each(|value| *value = (value.max(least) + 4.0) / 4.0);
        }
        values
    }
}

/// The sample at a position, which may be before the first or after the last one, by up to `half`.
fn mirrored(samples: &[f32], position: isize, half: usize) -> f32 {
    let last = samples.len().max(half + 1) as isize - 1;
    let within = if position > last { 2 * last - position } else { position.abs() };
    samples.get(within as usize).copied().unwrap_or(0.0)
}

/// The sample at a position, or zero.
fn or_zero(samples: &[f32], position: isize) -> f32 {
    usize::try_from(position).ok().and_then(|position| samples.get(position)).copied().unwrap_or(0.0)
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
        let half = self.mel.window.len() / 2;
        let first = (frame * HOP) as isize - half as isize;
        let sample = |position| match self.mel.spectrogram.edges {
            Edges::Mirrored => mirrored(samples, position, half),
            Edges::ZerosBefore => or_zero(samples, position),
        };
        // The transform has overwritten all of them.
        self.input[self.mel.window.len()..].fill(0.0);
        for ((position, input), factor) in (first..).zip(&mut self.input).zip(&self.mel.window) {
            *input = f64::from(sample(position)) * factor;
        }
    }

    /// The logarithm of the loudness of the frame in each mel bin.
    fn logarithms(&mut self) -> impl Iterator<Item = f32> {
        self.mel
            .fft
            .process_with_scratch(&mut self.input, &mut self.output, &mut self.scratch)
            .expect("the buffers have the lengths of the transform");
        let loudness = self.mel.spectrogram.loudness;
        let powers = self.output.iter().map(|value| value.norm_sqr());
        let values: Vec<f64> = match loudness {
            Loudness::Power => powers.collect(),
            Loudness::Magnitude(_) => powers.map(f64::sqrt).collect(),
        };
        self.mel.triangles.iter().map(move |triangle| {
            let products = triangle.weights.iter().zip(&values[triangle.first..]).map(|(weight, value)| weight * value);
            match loudness {
                Loudness::Power => products.sum::<f64>().max(LEAST_POWER).log10() as f32,
                Loudness::Magnitude(added) => (products.sum::<f64>() + added).ln() as f32,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_the_bin_around_its_frequency() {
        let mel = LogMel::new(WHISPER, 80);
        let tone: Vec<f32> =
            (0..1600).map(|index| (2.0 * PI * 1000.0 * index as f64 / 16_000.0).sin() as f32).collect();
        let frames = mel.spectrogram(&tone);
        assert_eq!(frames.len(), 10 * 80);
        let frame = &frames[5 * 80..][..80];
        let loudest = (0..80).max_by(|a, b| frame[*a].total_cmp(&frame[*b])).unwrap_or_default();
        let step = MelScale::Slaney.mel_of(8000.0) / 81.0;
        let [low, high] = [loudest, loudest + 2].map(|edge| MelScale::Slaney.hertz_of(step * edge as f64));
        assert!(low < 1000.0 && high > 1000.0, "{low} {high}");
    }

    #[test]
    fn samples_are_mirrored_without_the_first_and_the_last() {
        let samples: Vec<f32> = (0..300).map(|index| index as f32).collect();
        let at = |position| mirrored(&samples, position, 200);
        assert_eq!([-200, -1, 0, 299, 300, 499].map(at), [200.0, 1.0, 0.0, 299.0, 298.0, 99.0]);
        assert_eq!((mirrored(&[1.0], 0, 200), mirrored(&[1.0], -1, 200), mirrored(&[1.0], 400, 200)), (1.0, 0.0, 1.0));
    }

    #[test]
    fn silence_is_even() {
        let frames = LogMel::new(WHISPER, 128).spectrogram(&[0.0; 1600]);
        assert!(frames.iter().all(|value| *value == -1.5));
    }
}
