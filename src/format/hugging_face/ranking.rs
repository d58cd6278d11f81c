//! Rerankers: models that give a text one number instead of a vector, which the config states by its architecture.

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::families::RANKS;

/// The end of the names of architectures that classify texts. With one class, they are rerankers.
const CLASSIFIER: &str = "ForSequenceClassification";

/// Adds whether the model is a reranker.
///
/// # Errors
/// [`HuggingFaceError`] for a model that tells classes apart.
pub(super) fn describe(config: &mut Config) -> Result<(), HuggingFaceError> {
    let mut architectures = config.list("architectures")?.into_iter().flatten().filter_map(Json::as_str);
    let Some(architecture) = architectures.find(|name| name.ends_with(CLASSIFIER)).map(str::to_owned) else {
        return Ok(());
    };
    // A config that says nothing has two classes.
    let stated = config.get("id2label").and_then(Json::as_object).map(|labels| labels.len() as u64);
    let labels = stated.or_else(|| config.get("num_labels").and_then(Json::as_u64)).unwrap_or(2);
    if labels != 1 {
        let found = format!("{architecture} with {labels} labels");
        return Err(config.wrong("architectures", found, "one label, as rerankers have"));
    }
    config.set(RANKS, true.into());
    Ok(())
}
