//! The files of a directory that hold a model, and what to do about directories whose model is elsewhere.

use std::path::Path;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault, TEXT_MODEL};
use super::small_files::SmallFiles;
use crate::format::safetensors::Safetensors;

/// The files of weights and of sizes in the layout of Mistral's own programs.
const OF_MISTRAL: [&str; 3] = ["consolidated.safetensors", "consolidated.safetensors.index.json", "params.json"];

/// The files of weights, of which a directory has one.
const WEIGHTS: [&str; 2] = ["model.safetensors.index.json", "model.safetensors"];

/// A part of a model whose weights can be in a repository of their own.
pub(super) struct Part {
    /// The key of the config that names the repository.
    key: &'static str,
    /// A part of the name of a tensor that a directory with the weights has.
    tensor: &'static str,
    /// What to do about a directory without them.
    remedy: &'static str,
}

pub(super) const TEXT: Part = Part {
    key: TEXT_MODEL,
    tensor: "embed_tokens.weight",
    remedy: "load that model, with this directory as its projector",
};

pub(super) const AUDIO: Part =
    Part { key: "audio_model_id", tensor: "audio_tower.", remedy: "a GGUF version of the projector has them" };

/// The bytes of `config.json`.
pub(super) fn config(path: &Path, small: &mut SmallFiles) -> Result<Vec<u8>, HuggingFaceError> {
    let missing = || of_mistral(path).unwrap_or(HuggingFaceFault::NoConfig).in_file(path);
    small.bytes("config.json")?.ok_or_else(missing)
}

/// The tensors.
pub(super) fn weights(path: &Path) -> Result<Safetensors, HuggingFaceError> {
    let has_weights = WEIGHTS.iter().any(|name| path.join(name).exists());
    match of_mistral(path).filter(|_| !has_weights) {
        Some(fault) => Err(fault.in_file(path)),
        None => Ok(Safetensors::open(path)?),
    }
}

/// The fault of a directory in Mistral's layout.
fn of_mistral(path: &Path) -> Option<HuggingFaceFault> {
    let found = OF_MISTRAL.iter().find(|name| path.join(name).exists())?;
    Some(HuggingFaceFault::LayoutOfMistral { found })
}

/// Refuses a directory without the weights of a part whose repository its config names.
pub(super) fn check(path: &Path, config: &Config, part: &Part) -> Result<(), HuggingFaceError> {
    let Some(id) = config.get(part.key).and_then(|id| id.as_str()) else { return Ok(()) };
    if weights(path)?.tensors().iter().any(|tensor| tensor.name.contains(part.tensor)) {
        return Ok(());
    }
    let (key, id, remedy) = (part.key, id.to_owned(), part.remedy);
    Err(HuggingFaceFault::Elsewhere { key, id, remedy }.in_file(path))
}
