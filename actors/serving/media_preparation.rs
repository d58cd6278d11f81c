//! Turns the file of a media item into what its encoder takes, on a blocking thread, within the memory of the request.

use cuelight_engine::media::MediaKind;
use cuelight_engine::projector::{MediaPreparation, PreparedMedia};

use super::audio_file::{AudioFile, AudioFileError};
use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::image_file::{ImageFile, ImageFileError};
use super::media_limits::MediaLimits;
use super::memory::RequestBudget;

/// Bytes that an image needs while it is prepared, for each pixel: two resized copies with three colors of four bytes, if it is not
/// made smaller.
const PREPARATION_BYTES: usize = 24;

/// Most bytes that the preparation of a large image needs, because it is made smaller.
const MOST_PREPARATION_BYTES: usize = 96 << 20;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Image(#[from] ImageFileError),
    #[error(transparent)]
    Audio(#[from] AudioFileError),
    #[error("{0}")]
    Preparation(String),
    /// The model has no encoder for it.
    #[error("the model takes none")]
    NoEncoder,
}

/// Decodes a file and turns it into what the encoder takes.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field when the file is not read, and that of `memory`.
pub(super) async fn prepare(
    file: Vec<u8>,
    (kind, path): (MediaKind, &str),
    (preparation, limits): (MediaPreparation, &MediaLimits),
    memory: &mut impl RequestBudget,
) -> Result<PreparedMedia, ApiError> {
    let unusable = move |path: &str, error: Unusable| {
        ApiError::invalid(path, format!("the {} in `{path}` cannot be used: {error}", kind.one()))
    };
    memory.grow(bytes_to_prepare(kind, &file, limits).map_err(|error| unusable(path, error))?)?;
    let (path, limits) = (path.to_owned(), limits.clone());
    on_blocking_thread(move || prepare_file(kind, &file, &preparation, &limits).map_err(|error| unusable(&path, error)))
        .await
}

/// Bytes of memory that a file needs, by its header.
fn bytes_to_prepare(kind: MediaKind, file: &[u8], limits: &MediaLimits) -> Result<usize, Unusable> {
    match kind {
        MediaKind::Image => {
            let opened = ImageFile::open(file, limits.image_pixels)?;
            let preparation = opened.pixels().saturating_mul(PREPARATION_BYTES).min(MOST_PREPARATION_BYTES);
            Ok(opened.bytes().saturating_add(preparation))
        }
        MediaKind::Audio => Ok(AudioFile::open(file, limits.audio_seconds)?.bytes()),
    }
}

fn prepare_file(
    kind: MediaKind,
    file: &[u8],
    preparation: &MediaPreparation,
    limits: &MediaLimits,
) -> Result<PreparedMedia, Unusable> {
    match kind {
        MediaKind::Image => {
            let images = preparation.images.as_ref().ok_or(Unusable::NoEncoder)?;
            let image = ImageFile::open(file, limits.image_pixels)?.decode()?;
            let prepared = images.prepare(&image).map_err(|error| Unusable::Preparation(error.to_string()))?;
            Ok(PreparedMedia::Image(prepared))
        }
        MediaKind::Audio => {
            let audio = preparation.audio.as_ref().ok_or(Unusable::NoEncoder)?;
            let samples = AudioFile::open(file, limits.audio_seconds)?.decode()?;
            let prepared = audio.prepare(&samples).map_err(|error| Unusable::Preparation(error.to_string()))?;
            Ok(PreparedMedia::Audio(prepared))
        }
    }
}
