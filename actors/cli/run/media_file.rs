//! Files of images and audio, computed to what takes their place in a prompt.

use cuelight_engine::media::MediaKind;

use crate::cli::error::CliError;
use crate::pipeline::media::CachedMedia;
use crate::pipeline::runtime::ServedModel;
use crate::serving::media;
use crate::serving::media_limits::MediaLimits;
use crate::serving::media_source::{MediaField, MediaSource};

/// Computes a file. `name` stands for it in errors.
///
/// # Errors
/// [`CliError`] when the model takes no such file, or it is not read as one.
pub async fn encode(
    kind: MediaKind,
    name: String,
    file: Vec<u8>,
    model: &ServedModel,
) -> Result<Vec<CachedMedia>, CliError> {
    let source = MediaSource::File(file);
    let field = MediaField { media: kind, path: name.clone(), kind_path: name, kind: None, source };
    let encoded = media::encode(vec![field], model, &MediaLimits::default(), None, &mut ()).await;
    encoded.map_err(CliError::other)
}
