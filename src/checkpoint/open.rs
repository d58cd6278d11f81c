//! Opens what a model is loaded from.

use std::path::Path;

use super::{Checkpoint, joined_latent};
use crate::format::gguf::{Gguf, GgufError};
use crate::format::hugging_face::{Directory, HuggingFaceError};

/// Why a path cannot be opened as a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The GGUF file is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The directory is damaged, incomplete or not supported.
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
}

/// Opens a GGUF file, or a directory as published on the Hugging Face Hub.
///
/// # Errors
/// [`OpenError`] naming the file and what is wrong with it.
pub fn open(path: &Path) -> Result<Box<dyn Checkpoint>, OpenError> {
    if path.is_dir() { Ok(Box::new(Directory::open(path)?)) } else { Ok(joined_latent::checkpoint(Gguf::open(path)?)?) }
}
