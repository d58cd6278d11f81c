//! The names of models. Ollama's have a tag, so any name may end with `:latest`.

use crate::api::fields::{Fields, missing};
use crate::models::{ModelInfo, Models, ModelsError};
use crate::serving::error::ApiError;

/// The field `model`, or `name` of older clients.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when neither is there.
pub(super) fn named<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    let name = fields.string("model")?.or(fields.string("name")?);
    name.ok_or_else(|| missing(&fields.path("model"), "the name of a model"))
}

/// The model of this name, or of this name without `:latest`.
///
/// # Errors
/// [`ApiError::Model`] with the whole name.
pub(super) async fn find(models: &Models, name: &str) -> Result<ModelInfo, ApiError> {
    let unknown = match models.show(name).await {
        Err(error @ ModelsError::Unknown(_)) => error,
        found => return Ok(found?),
    };
    let Some(plain) = name.strip_suffix(":latest") else { return Err(unknown.into()) };
    match models.show(plain).await {
        Err(ModelsError::Unknown(_)) => Err(unknown.into()),
        found => Ok(found?),
    }
}
