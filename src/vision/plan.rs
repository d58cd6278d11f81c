//! The plan of a vision tower: what its headers say, before anything large is allocated.

use std::sync::Arc;

use super::{ImageEncoder, ImagePreparation, VisionError, VisionOptions};
use crate::cancel::LoadCancel;
use crate::load::LoadError;
use crate::mapped_file::ModelFiles;

/// A vision tower whose headers are read.
pub struct VisionPlan {
    preparation: Arc<dyn ImagePreparation>,
    files: ModelFiles,
}

/// Reads the headers of a vision tower. Allocates nothing of its size.
///
/// # Errors
/// [`LoadError`] when the file is not a vision tower that can be computed on this device.
pub fn plan(options: &VisionOptions) -> Result<VisionPlan, LoadError> {
    Err(VisionError::NoTower { file: options.path.display().to_string() }.into())
}

impl VisionPlan {
    /// Turns images into what the encoder takes.
    #[must_use]
    pub fn preparation(&self) -> Arc<dyn ImagePreparation> {
        Arc::clone(&self.preparation)
    }

    /// The device whose memory it uses; `None` for the host's memory.
    #[must_use]
    pub fn device_memory(&self) -> Option<String> {
        None
    }

    /// Bytes of its weights and of its working memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        0
    }

    /// Its files, which must not change while it is used.
    #[must_use]
    pub fn files(&self) -> ModelFiles {
        self.files.clone()
    }

    /// The tower for people: "SigLIP, 27 layers, 896 x 896".
    #[must_use]
    pub fn describe(&self) -> String {
        String::new()
    }

    /// Loads the weights and reserves the working memory.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails, the file has changed, or the load was cancelled.
    pub fn load(self, cancel: &LoadCancel) -> Result<Box<dyn ImageEncoder>, LoadError> {
        cancel.check()?;
        let file = self.files.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
        Err(VisionError::NoTower { file }.into())
    }
}
