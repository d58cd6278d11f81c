//! Audio as input of a language model: what an audio encoder makes of a clip, and what takes its place in the prompt.
//!
//! [`plan_of_file`](plan::plan_of_file) reads the headers of an audio encoder. Its plan gives an [`AudioPreparation`], which turns
//! samples into a spectrogram and says what stands for them in the prompt, and loads an [`AudioEncoder`], which computes the
//! embedding rows.
//!
//! # Layout, in reading order
//!
//! - [`error`]: why audio cannot be prepared
//! - [`family`]: the projectors, one declarative file each; [`sizes`]: the keys of a file, checked
//! - [`mel`], [`mel_scale`]: samples as a spectrogram; [`preparation`]: the spectrogram of a clip, in windows
//! - [`front`]: the convolutions before the layers; [`convolution`], [`grid`]: neighbouring values as one row; [`sinusoids`]:
//!   positions; [`conformer`], [`tower`]: the ops of a window
//! - [`encoder`]: runs them
//! - [`plan`]: the plan of an encoder, and loading by it
//! - [`alignment`]: when tokens are spoken

pub mod alignment;
pub mod conformer;
pub mod convolution;
pub mod encoder;
pub mod error;
pub mod family;
pub mod front;
pub mod grid;
pub mod mel;
pub mod mel_scale;
pub mod plan;
pub mod preparation;
pub mod sinusoids;
pub mod sizes;
pub mod tower;

use crate::media::{MediaPart, MediaSpec};

pub use encoder::AudioEncoder;
pub use error::AudioError;
pub use plan::AudioPlan;

/// Samples of a second, which all encoders take.
pub const SAMPLE_RATE: usize = 16_000;

/// Audio as the encoder takes it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PreparedAudio {
    /// What takes the place of the placeholder.
    pub parts: Vec<MediaPart>,
    /// What the encoder computes, one window after the other.
    pub windows: Vec<Window>,
}

impl PreparedAudio {
    /// The number of embedding rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.parts.iter().map(MediaPart::rows).sum()
    }
}

/// A part of a clip that the encoder computes at once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Window {
    /// [frames, mel bins]: the spectrogram.
    frames: Vec<f32>,
    /// The rows of the encoder that are computed.
    rows: usize,
}

impl Window {
    /// A part of a clip, [frames, mel bins], of which `rows` rows are computed.
    #[must_use]
    pub fn new(frames: Vec<f32>, rows: usize) -> Self {
        Window { frames, rows }
    }

    /// The rows of the encoder that are computed.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// [frames, mel bins]: the logarithm of the loudness at each of them.
    #[must_use]
    pub fn frames(&self) -> &[f32] {
        &self.frames
    }
}

/// Turns audio into what the encoder takes. It has no weights and may be used by many threads.
pub trait AudioPreparation: Send + Sync {
    /// How the model takes audio.
    fn spec(&self) -> &MediaSpec;

    /// The most samples of a clip; `None` if they are not limited.
    fn most_samples(&self) -> Option<usize>;

    /// The spectrogram of a clip: its samples from -1 to 1, of one channel, [`SAMPLE_RATE`] of them a second.
    ///
    /// # Errors
    /// [`AudioError`] when it is too short for one row, or too long for the model.
    fn prepare(&self, samples: &[f32]) -> Result<PreparedAudio, AudioError>;
}
