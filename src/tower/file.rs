//! Opens a file with encoders, and says which it has.

use std::path::Path;

use super::error::TowerError;
use crate::checkpoint::{Checkpoint, OpenError, quantized};
use crate::format::gguf::Gguf;
use crate::format::hugging_face::Directory;
use crate::load::LoadError;
use crate::media::MediaKind;

/// The architecture of a file with encoders.
pub const ARCHITECTURE: &str = "clip";

/// A file, or the encoder of a directory, with the tensors of its quantized copy if there is one.
///
/// # Errors
/// [`LoadError`] when it cannot be opened, or has no encoder.
pub fn open(path: &Path, copy: Option<&Path>) -> Result<Box<dyn Checkpoint>, LoadError> {
    let file = opened(path)?;
    match (file.str("general.architecture")?, copy) {
        (ARCHITECTURE, None) => Ok(file),
        (ARCHITECTURE, Some(copy)) => Ok(quantized::with_copy(file, copy)?),
        (found, _) => {
            Err(TowerError::NotProjector { file: path.display().to_string(), found: found.to_owned() }.into())
        }
    }
}

fn opened(path: &Path) -> Result<Box<dyn Checkpoint>, OpenError> {
    if path.is_dir() { Ok(Box::new(Directory::open_encoder(path)?)) } else { Ok(Box::new(Gguf::open(path)?)) }
}

/// What the keys of a kind of encoder begin with.
#[must_use]
pub fn section(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "clip.vision",
        MediaKind::Audio => "clip.audio",
    }
}

/// Whether a file has an encoder of this kind. Older files do not say so, and have one of images.
///
/// # Errors
/// [`LoadError::Gguf`] when a key has another type.
pub fn has(file: &dyn Checkpoint, kind: MediaKind) -> Result<bool, LoadError> {
    let is_set = |name: &str| file.optional_bool(name);
    let has_audio = is_set("clip.has_audio_encoder")?.unwrap_or_default();
    Ok(match kind {
        MediaKind::Audio => has_audio,
        MediaKind::Image => is_set("clip.has_vision_encoder")?.unwrap_or(!has_audio),
    })
}

/// The projector of a kind of encoder.
///
/// # Errors
/// [`TowerError::NoTower`] when the file names none.
pub fn projector(file: &dyn Checkpoint, kind: MediaKind) -> Result<String, LoadError> {
    let stated = match file.optional_str("clip.projector_type")? {
        None | Some("") => file.optional_str(&format!("{}.projector_type", section(kind)))?,
        found => found,
    };
    // The first files of LLaVA name no projector.
    let is_llava = kind == MediaKind::Image && file.optional_bool("clip.has_llava_projector")?.unwrap_or_default();
    let found = stated.or(is_llava.then_some("mlp"));
    let missing = || TowerError::NoTower { file: file.path().display().to_string(), kind: kind.several() };
    Ok(found.ok_or_else(missing)?.to_owned())
}
