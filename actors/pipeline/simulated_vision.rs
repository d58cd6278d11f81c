//! An image encoder without a model, for tests of everything around encoders.
//!
//! The rows of an image follow from its pixels, so two images have the same rows only if they are equal. The number of rows follows
//! from its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuelight_engine::engine::EngineError;
use cuelight_engine::load::LoadCancel;
use cuelight_engine::vision::{
    ImageEncoder, ImageError, ImagePart, ImagePreparation, ImageSpec, PreparedImage, RgbImage, Tile,
};

use super::model_source::{SourceError, VisionModel};

/// Returns whether an image panics, given its number among all images of all encoders of the model.
pub type PanicInjector = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// A model of simulated encoders.
#[derive(Clone)]
pub struct SimulatedVision {
    /// How it takes images.
    pub spec: ImageSpec,
    /// Time of an image, which passes for real.
    pub image_time: Duration,
    /// Injects faults.
    pub panics: Option<PanicInjector>,
    /// The number of images that were encoded, shared by all clones.
    pub encoded: Arc<AtomicU64>,
}

impl Default for SimulatedVision {
    fn default() -> Self {
        SimulatedVision {
            spec: ImageSpec {
                placeholder: "<|image|>".to_owned(),
                row_token: "<|image_row|>".to_owned(),
                rows_see_each_other: false,
                width: 4,
                max_rows: 64,
            },
            image_time: Duration::ZERO,
            panics: None,
            encoded: Arc::default(),
        }
    }
}

impl VisionModel for SimulatedVision {
    fn preparation(&self) -> Arc<dyn ImagePreparation> {
        Arc::new(self.clone())
    }

    fn load(&self, _cancel: &LoadCancel) -> Result<Box<dyn ImageEncoder>, SourceError> {
        Ok(Box::new(self.clone()))
    }
}

impl ImagePreparation for SimulatedVision {
    fn spec(&self) -> &ImageSpec {
        &self.spec
    }

    /// One row for every pixel of the longer side, up to the most rows.
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError> {
        let RgbImage { width, height, pixels } = image;
        if pixels.is_empty() {
            return Err(ImageError::Empty { width: *width, height: *height });
        }
        let rows = (*width.max(height) as usize).min(self.spec.max_rows);
        let row_text = |text: &str| ImagePart::Text(text.to_owned());
        let parts = vec![row_text("<|image|>"), ImagePart::Rows(rows), row_text("<|image_end|>")];
        let patches = pixels.iter().map(|&value| f32::from(value)).collect();
        Ok(PreparedImage { parts, tiles: vec![Tile::new([*width as usize, *height as usize], patches)] })
    }
}

impl ImageEncoder for SimulatedVision {
    fn encode(&mut self, image: &PreparedImage, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        let number = self.encoded.fetch_add(1, Ordering::Relaxed);
        if self.panics.as_ref().is_some_and(|panics| panics(number)) {
            // A panic without the hook, which would print a message.
            std::panic::resume_unwind(Box::new("injected"));
        }
        if !self.image_time.is_zero() {
            std::thread::sleep(self.image_time);
        }
        cancel.check().map_err(|_| EngineError::Cancelled)?;
        let values = image.tiles.iter().flat_map(Tile::patches);
        let sum = values.fold(0.0_f32, |sum, value| (sum * 31.0 + value + 1.0) % 8191.0);
        Ok((0..image.rows() * self.spec.width).map(|index| (sum + index as f32 * 0.5) % 97.0).collect())
    }
}
