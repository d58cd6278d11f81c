//! The media of a request, images and audio: from the fields of its body to embedding rows.
//!
//! All of this happens under the permit of the request. An item whose file was sent before is found in the cache of the model and
//! not decoded again. Otherwise it waits for a slot of the model, which bounds the memory of pixels and samples, is decoded on a
//! blocking thread, and waits for the encoder. Dropping the future ends all of it.

use cuelight_engine::media::MediaKind;

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::media_fetch::fetch;
use super::media_insertion::MediaSpan;
use super::media_limits::MediaLimits;
use super::media_preparation::prepare;
use super::media_source::{MediaField, MediaSource, decode_base64};
use super::memory::RequestBudget;
use super::prompt::PromptTokens;
use crate::core::prompt_media::{MediaParts, MediaRun, PromptMedia};
use crate::core::request::SubmitError;
use crate::pipeline::media::{CachedMedia, EncodeError, MediaId, ModelMedia};
use crate::pipeline::runtime::ServedModel;

/// What takes the place of each media item in the prompt.
pub(crate) type Parts = Vec<MediaParts>;

/// Computes the rows of the media of a request.
///
/// # Errors
/// [`ApiError::Unsupported`] when the model takes no such media, [`ApiError::InvalidRequest`] that names the field when an item is
/// not read.
pub(crate) async fn encode(
    fields: Vec<MediaField>,
    model: &ServedModel,
    limits: &MediaLimits,
    salt: Option<&str>,
    memory: &mut impl RequestBudget,
) -> Result<Vec<CachedMedia>, ApiError> {
    let Some(media) = media_of(&fields, model, limits)? else { return Ok(Vec::new()) };
    let mut encoded = Vec::with_capacity(fields.len());
    for MediaField { path, media: kind, source, .. } in fields {
        let before = memory.held();
        let file = file_of(source, (kind, &path), limits, memory).await?;
        let id = MediaId::of_file(kind, &file, salt);
        let item = match media.find(&id) {
            Some(item) => item,
            None => encode_one(id, file, (kind, &path), (media, limits), memory).await?,
        };
        memory.shrink_to(before);
        // Its rows are held until the request ends.
        memory.grow(item.media.bytes())?;
        encoded.push(item);
    }
    Ok(encoded)
}

/// What takes the place of the media of a request, without their rows.
///
/// # Errors
/// As [`encode`].
pub(crate) async fn measure(
    fields: Vec<MediaField>,
    model: &ServedModel,
    limits: &MediaLimits,
    memory: &mut impl RequestBudget,
) -> Result<Parts, ApiError> {
    let Some(media) = media_of(&fields, model, limits)? else { return Ok(Vec::new()) };
    let mut measured = Vec::with_capacity(fields.len());
    for MediaField { path, media: kind, source, .. } in fields {
        let before = memory.held();
        let file = file_of(source, (kind, &path), limits, memory).await?;
        let _slot = media.slots().acquire_owned().await.map_err(|_| ApiError::Internal)?;
        let prepared = prepare(file, (kind, &path), (media.preparation(), limits), memory).await?;
        measured.push(MediaParts { kind, parts: prepared.parts().into() });
        memory.shrink_to(before);
    }
    Ok(measured)
}

/// The media of a prompt, with the positions of their rows.
pub(crate) fn prompt_media(prompt: &PromptTokens, encoded: &[CachedMedia], model: &ServedModel) -> PromptMedia {
    let run = |span: &MediaSpan| {
        let media = encoded.get(span.item)?.media.clone();
        Some(MediaRun { position: span.position, rows: span.rows.clone(), media, grid: span.grid })
    };
    let sees =
        |kind| model.media.as_ref().and_then(|media| media.spec(kind)).is_some_and(|spec| spec.rows_see_each_other);
    let see_each_other = encoded.iter().any(|item| sees(item.parts.kind));
    PromptMedia::new(prompt.media.iter().filter_map(run).collect(), see_each_other)
}

/// The media of a model that can take those of a request. `None` for a request without.
fn media_of<'a>(
    fields: &[MediaField],
    model: &'a ServedModel,
    limits: &MediaLimits,
) -> Result<Option<&'a ModelMedia>, ApiError> {
    if let Some(field) = fields.iter().find(|field| !model.takes(field.media)) {
        return Err(takes_none(field, model));
    }
    for kind in MediaKind::ALL {
        let of_kind = || fields.iter().filter(|field| field.media == kind);
        if let Some(field) = of_kind().nth(limits.count(kind).0) {
            return Err(limits.too_many(kind, of_kind().count(), &field.path));
        }
    }
    Ok(model.media.as_deref().filter(|_| !fields.is_empty()))
}

fn takes_none(field: &MediaField, model: &ServedModel) -> ApiError {
    let param = field.kind_path.clone();
    let others: Vec<&str> = model.media.iter().flat_map(|media| media.kinds()).map(MediaKind::several).collect();
    let accepted = if others.is_empty() { String::new() } else { format!(" and {}", others.join(" and ")) };
    let message = match field.kind {
        Some(kind) => format!("`{param}` cannot be {kind}: this model accepts text{accepted} only"),
        None => format!("`{param}` is not supported: this model accepts text{accepted} only"),
    };
    ApiError::Unsupported { param, message }
}

/// The file of a media item.
async fn file_of(
    source: MediaSource,
    (kind, path): (MediaKind, &str),
    limits: &MediaLimits,
    memory: &mut impl RequestBudget,
) -> Result<Vec<u8>, ApiError> {
    match source {
        MediaSource::File(bytes) if bytes.len() > limits.bytes(kind).0 => Err(limits.too_large(kind, path)),
        MediaSource::File(bytes) => Ok(bytes),
        MediaSource::Url(url) => fetch(&url, (kind, path), limits, memory).await,
        MediaSource::Base64(text) => {
            memory.grow(text.len())?;
            let (path, limits) = (path.to_owned(), limits.clone());
            on_blocking_thread(move || decode_base64(&text, (kind, &path), &limits)).await
        }
    }
}

/// Decodes, prepares and encodes a media item.
async fn encode_one(
    id: MediaId,
    file: Vec<u8>,
    (kind, path): (MediaKind, &str),
    (media, limits): (&ModelMedia, &MediaLimits),
    memory: &mut impl RequestBudget,
) -> Result<CachedMedia, ApiError> {
    let _slot = media.slots().acquire_owned().await.map_err(|_| ApiError::Internal)?;
    // Another request may have sent the same item meanwhile.
    if let Some(item) = media.find(&id) {
        return Ok(item);
    }
    let prepared = prepare(file, (kind, path), (media.preparation(), limits), memory).await?;
    media.encode(id, prepared).await.map_err(|error| match error {
        EncodeError::Failed(reason) => {
            tracing::error!(reason, "{} was not encoded", kind.several());
            ApiError::Internal
        }
        EncodeError::Unavailable(reason) => {
            let reason = format!("the model takes no {} now: {reason}", kind.several());
            SubmitError::Unavailable { reason, retry_after: std::time::Duration::from_secs(5) }.into()
        }
    })
}
