//! An encoder of images and audio without a model, for tests of everything around encoders.
//!
//! The rows of a media item follow from its pixels or samples, so two items have the same rows only if they are equal. The number
//! of rows follows from the size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuelight_engine::audio::{AudioError, AudioPreparation, PreparedAudio, Window};
use cuelight_engine::engine::EngineError;
use cuelight_engine::load::LoadCancel;
use cuelight_engine::media::{MediaKind, MediaPart, MediaSpec};
use cuelight_engine::projector::{MediaEncoder, MediaPreparation, PreparedMedia};
use cuelight_engine::vision::{ImageError, ImagePreparation, PreparedImage, RgbImage, Tile};

use super::model_source::{MediaModel, SourceError};

/// Returns whether a media item panics, given its number among all of all encoders of the model.
pub type PanicInjector = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// A model of simulated encoders.
#[derive(Clone)]
pub struct SimulatedMedia {
    /// How it takes images, if it does.
    pub images: Option<MediaSpec>,
    /// How it takes audio, if it does.
    pub audio: Option<MediaSpec>,
    /// Time of a media item, which passes for real.
    pub item_time: Duration,
    /// Injects faults.
    pub panics: Option<PanicInjector>,
    /// The number of media items that were encoded, shared by all clones.
    pub encoded: Arc<AtomicU64>,
}

impl Default for SimulatedMedia {
    fn default() -> Self {
        SimulatedMedia {
            images: Some(SimulatedMedia::spec(MediaKind::Image)),
            audio: None,
            item_time: Duration::ZERO,
            panics: None,
            encoded: Arc::default(),
        }
    }
}

impl SimulatedMedia {
    /// A model that takes images and audio.
    #[must_use]
    pub fn with_audio() -> Self {
        SimulatedMedia { audio: Some(SimulatedMedia::spec(MediaKind::Audio)), ..SimulatedMedia::default() }
    }

    /// How media of a kind are taken.
    #[must_use]
    pub fn spec(kind: MediaKind) -> MediaSpec {
        let name = kind.part_type();
        MediaSpec {
            placeholder: format!("<|{name}|>"),
            row_tokens: vec![format!("<|{name}_row|>")],
            rows_see_each_other: false,
            width: 4,
            max_rows: 64,
        }
    }
}

/// A model of one kind of media.
struct Preparation(MediaSpec);

impl Preparation {
    /// What takes the place of an item of this size: one row for each unit of it, up to the most rows.
    fn parts(&self, kind: MediaKind, size: usize) -> Vec<MediaPart> {
        let name = kind.part_type();
        let text = |text: String| MediaPart::Text(text);
        let rows = MediaPart::Rows(size.min(self.0.max_rows));
        vec![text(format!("<|{name}|>")), rows, text(format!("<|{name}_end|>"))]
    }
}

impl MediaModel for SimulatedMedia {
    fn preparation(&self) -> MediaPreparation {
        MediaPreparation {
            images: self.images.clone().map(|spec| Arc::new(Preparation(spec)) as _),
            audio: self.audio.clone().map(|spec| Arc::new(Preparation(spec)) as _),
        }
    }

    fn load(&self, _cancel: &LoadCancel) -> Result<Box<dyn MediaEncoder>, SourceError> {
        Ok(Box::new(self.clone()))
    }
}

impl ImagePreparation for Preparation {
    fn spec(&self) -> &MediaSpec {
        &self.0
    }

    /// One row for every pixel of the longer side.
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError> {
        let RgbImage { width, height, pixels } = image;
        if pixels.is_empty() {
            return Err(ImageError::Empty { width: *width, height: *height });
        }
        let parts = self.parts(MediaKind::Image, *width.max(height) as usize);
        let patches = pixels.iter().map(|&value| f32::from(value)).collect();
        Ok(PreparedImage { parts, tiles: vec![Tile::new([*width as usize, *height as usize], patches)] })
    }
}

impl AudioPreparation for Preparation {
    fn spec(&self) -> &MediaSpec {
        &self.0
    }

    fn most_samples(&self) -> Option<usize> {
        None
    }

    /// One row for every 160 samples.
    fn prepare(&self, samples: &[f32]) -> Result<PreparedAudio, AudioError> {
        let rows = samples.len() / 160;
        if rows == 0 {
            return Err(AudioError::TooShort { samples: samples.len() });
        }
        Ok(PreparedAudio {
            parts: self.parts(MediaKind::Audio, rows),
            windows: vec![Window::new(samples.to_vec(), rows)],
        })
    }
}

impl MediaEncoder for SimulatedMedia {
    fn encode(&mut self, media: &PreparedMedia, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        let number = self.encoded.fetch_add(1, Ordering::Relaxed);
        if self.panics.as_ref().is_some_and(|panics| panics(number)) {
            // A panic without the hook, which would print a message.
            std::panic::resume_unwind(Box::new("injected"));
        }
        if !self.item_time.is_zero() {
            std::thread::sleep(self.item_time);
        }
        cancel.check().map_err(|_| EngineError::Cancelled)?;
        let (values, rows, spec) = match media {
            PreparedMedia::Image(image) => {
                let values: Vec<&f32> = image.tiles.iter().flat_map(Tile::patches).collect();
                (values, image.rows(), &self.images)
            }
            PreparedMedia::Audio(audio) => {
                let values: Vec<&f32> = audio.windows.iter().flat_map(Window::frames).collect();
                let rows = audio.windows.iter().map(Window::rows).sum();
                (values, rows, &self.audio)
            }
        };
        let sum = values.into_iter().fold(0.0_f32, |sum, value| (sum * 31.0 + value + 1.0) % 8191.0);
        let (width, most) = spec.as_ref().map_or((0, 0), |spec| (spec.width, spec.max_rows));
        Ok((0..rows.min(most) * width).map(|index| (sum + index as f32 * 0.5) % 97.0).collect())
    }
}
