//! The images of a request: from the fields of its body to embedding rows.
//!
//! All of this happens under the permit of the request. An image whose file was sent before is found in the cache of the model and
//! not decoded again. Otherwise it waits for a slot of the model, which bounds the memory of pixels, is decoded on a blocking
//! thread, and waits for the encoder. Dropping the future ends all of it.

use std::sync::Arc;

use cuelight_engine::vision::{ImagePart, ImagePreparation, PreparedImage};

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::image_fetch::{ImageHost, fetch};
use super::image_file::{ImageFile, ImageFileError};
use super::image_insertion::ImageSpan;
use super::image_source::{ImageField, ImageSource, decode_base64, too_large};
use super::memory::RequestBudget;
use super::prompt::PromptTokens;
use crate::core::prompt_images::{ImageRun, PromptImages};
use crate::core::request::SubmitError;
use crate::pipeline::runtime::ServedModel;
use crate::pipeline::vision::{CachedImage, EncodeError, ImageId, ModelImages};

/// Limits of the images of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLimits {
    /// Most images of a request.
    pub count: usize,
    /// Most bytes of the file of an image.
    pub bytes: usize,
    /// Most pixels of an image.
    pub pixels: u64,
    /// The hosts from which images may be loaded.
    pub hosts: Arc<[ImageHost]>,
}

impl ImageLimits {
    /// Default of [`ImageLimits::count`].
    pub const COUNT: usize = 16;
    /// Default of [`ImageLimits::bytes`].
    pub const BYTES: usize = 20 << 20;
    /// Default of [`ImageLimits::pixels`].
    pub const PIXELS: usize = 32 << 20;
}

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits { count: Self::COUNT, bytes: Self::BYTES, pixels: Self::PIXELS as u64, hosts: Arc::default() }
    }
}

/// Bytes that an image needs while it is prepared, for each pixel: two resized copies with three colors of four bytes, if it is not
/// made smaller.
const PREPARATION_BYTES: usize = 24;

/// Most bytes that the preparation of a large image needs, because it is made smaller.
const MOST_PREPARATION_BYTES: usize = 96 << 20;

/// What takes the place of each image in the prompt.
pub(crate) type Parts = Vec<Arc<[ImagePart]>>;

/// Computes the rows of the images of a request.
///
/// # Errors
/// [`ApiError::Unsupported`] when the model takes no images, [`ApiError::InvalidRequest`] that names the field when an image is not
/// read.
pub(crate) async fn encode(
    fields: Vec<ImageField>,
    model: &ServedModel,
    limits: &ImageLimits,
    salt: Option<&str>,
    memory: &mut impl RequestBudget,
) -> Result<Vec<CachedImage>, ApiError> {
    let Some(images) = images_of(&fields, model, limits)? else { return Ok(Vec::new()) };
    let mut encoded = Vec::with_capacity(fields.len());
    for ImageField { path, source, .. } in fields {
        let before = memory.held();
        let file = file_of(source, &path, limits, memory).await?;
        let id = ImageId::of_file(&file, salt);
        let image = match images.find(&id) {
            Some(image) => image,
            None => encode_one(id, file, &path, (images, limits), memory).await?,
        };
        memory.shrink_to(before);
        // Its rows are held until the request ends.
        memory.grow(image.image.bytes())?;
        encoded.push(image);
    }
    Ok(encoded)
}

/// What takes the place of the images of a request, without their rows.
///
/// # Errors
/// As [`encode`].
pub(crate) async fn measure(
    fields: Vec<ImageField>,
    model: &ServedModel,
    limits: &ImageLimits,
    memory: &mut impl RequestBudget,
) -> Result<Parts, ApiError> {
    let Some(images) = images_of(&fields, model, limits)? else { return Ok(Vec::new()) };
    let mut measured = Vec::with_capacity(fields.len());
    for ImageField { path, source, .. } in fields {
        let before = memory.held();
        let file = file_of(source, &path, limits, memory).await?;
        let _slot = images.slots().acquire_owned().await.map_err(|_| ApiError::Internal)?;
        measured.push(prepare(file, &path, (images, limits), memory).await?.parts.into());
        memory.shrink_to(before);
    }
    Ok(measured)
}

/// The images of a prompt, with the positions of their rows.
pub(crate) fn prompt_images(prompt: &PromptTokens, encoded: &[CachedImage], model: &ServedModel) -> PromptImages {
    let run = |span: &ImageSpan| {
        let image = encoded.get(span.image)?.image.clone();
        Some(ImageRun { position: span.position, rows: span.rows.clone(), image, grid: span.grid })
    };
    let see_each_other = model.images.as_ref().is_some_and(|images| images.spec().rows_see_each_other);
    PromptImages::new(prompt.images.iter().filter_map(run).collect(), see_each_other)
}

/// The images of a model that can take those of a request. `None` for a request without.
fn images_of<'a>(
    fields: &[ImageField],
    model: &'a ServedModel,
    limits: &ImageLimits,
) -> Result<Option<&'a ModelImages>, ApiError> {
    let Some(first) = fields.first() else { return Ok(None) };
    let images = model.images.as_deref().ok_or_else(|| takes_none(first))?;
    match fields.get(limits.count) {
        None => Ok(Some(images)),
        Some(field) => {
            let (count, most) = (fields.len(), limits.count);
            let message =
                format!("the request has {count} images, more than the {most} that this server accepts (--max-images)");
            Err(ApiError::invalid(&field.path, message))
        }
    }
}

fn takes_none(field: &ImageField) -> ApiError {
    let param = field.kind_path.clone();
    let message = match field.kind {
        Some(kind) => format!("`{param}` cannot be {kind}: this model accepts text only"),
        None => format!("`{param}` is not supported: this model accepts text only"),
    };
    ApiError::Unsupported { param, message }
}

/// The file of an image.
async fn file_of(
    source: ImageSource,
    path: &str,
    limits: &ImageLimits,
    memory: &mut impl RequestBudget,
) -> Result<Vec<u8>, ApiError> {
    match source {
        ImageSource::File(bytes) if bytes.len() > limits.bytes => Err(too_large(path, limits.bytes)),
        ImageSource::File(bytes) => Ok(bytes),
        ImageSource::Url(url) => fetch(&url, path, &limits.hosts, limits.bytes, memory).await,
        ImageSource::Base64(text) => {
            memory.grow(text.len())?;
            let (path, most) = (path.to_owned(), limits.bytes);
            on_blocking_thread(move || decode_base64(&text, &path, most)).await
        }
    }
}

/// Decodes, prepares and encodes an image.
async fn encode_one(
    id: ImageId,
    file: Vec<u8>,
    path: &str,
    (images, limits): (&ModelImages, &ImageLimits),
    memory: &mut impl RequestBudget,
) -> Result<CachedImage, ApiError> {
    let _slot = images.slots().acquire_owned().await.map_err(|_| ApiError::Internal)?;
    // Another request may have sent the same image meanwhile.
    if let Some(image) = images.find(&id) {
        return Ok(image);
    }
    let prepared = prepare(file, path, (images, limits), memory).await?;
    images.encode(id, prepared).await.map_err(|error| match error {
        EncodeError::Failed(reason) => {
            tracing::error!(reason, "an image was not encoded");
            ApiError::Internal
        }
        EncodeError::Unavailable(reason) => {
            let reason = format!("the model takes no images now: {reason}");
            SubmitError::Unavailable { reason, retry_after: std::time::Duration::from_secs(5) }.into()
        }
    })
}

/// Bytes of memory that an image needs, by its header.
fn bytes_to_prepare(file: &[u8], most_pixels: u64) -> Result<usize, ImageFileError> {
    let opened = ImageFile::open(file, most_pixels)?;
    let preparation = opened.pixels().saturating_mul(PREPARATION_BYTES).min(MOST_PREPARATION_BYTES);
    Ok(opened.bytes().saturating_add(preparation))
}

/// Decodes an image and turns it into what the encoder takes.
async fn prepare(
    file: Vec<u8>,
    path: &str,
    (images, limits): (&ModelImages, &ImageLimits),
    memory: &mut impl RequestBudget,
) -> Result<PreparedImage, ApiError> {
    let unusable = |path: &str, error: &dyn std::fmt::Display| {
        ApiError::invalid(path, format!("the image in `{path}` cannot be used: {error}"))
    };
    memory.grow(bytes_to_prepare(&file, limits.pixels).map_err(|error| unusable(path, &error))?)?;
    let (preparation, path, most): (Arc<dyn ImagePreparation>, String, u64) =
        (images.preparation(), path.to_owned(), limits.pixels);
    on_blocking_thread(move || {
        let image =
            ImageFile::open(&file, most).and_then(ImageFile::decode).map_err(|error| unusable(&path, &error))?;
        drop(file);
        preparation.prepare(&image).map_err(|error| unusable(&path, &error))
    })
    .await
}
