//! Draft models that compute with the residuals of another model (EAGLE-3), as SpecForge, the authors and the package `speculators`
//! publish them.
//!
//! Source: the configs that vLLM and SGLang read.

use serde_json::Value as Json;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::families::DRAFTS;
use super::keys::Keys;
use crate::format::safetensors::Safetensors;

/// The key of the layers that a draft model reads.
const READ_LAYERS: &str = "eagle_aux_hidden_state_layer_ids";

/// The object that has this key in the configs of SpecForge.
const EAGLE: &str = "eagle_config";

/// The object with the layer in configs of `speculators`.
const OF_LAYER: &str = "transformer_layer_config";

/// The tensor of the distance from each logit to its token.
const DISTANCES: &str = "d2t";

/// The only kind of layer that is computed.
const LAYER_TYPE: &str = "llama";

/// What a config can say that is not computed, and the value that is.
const VARIANTS: [(&str, bool); 7] = [
    ("norm_before_fc", false),
    ("norm_output", false),
    ("fc_norm", false),
    ("use_aux_hidden_state", true),
    ("use_input_layernorm_in_first_layer", true),
    ("use_last_layernorm", true),
    ("use_mtp_layernorm", false),
];

/// Recognises a draft model by its class or its own vocabulary, and gives the values of its layer their usual names.
pub(super) fn describe(config: &mut Config) -> Result<(), HuggingFaceError> {
    let has_class = config.list("architectures")?.is_some_and(|names| {
        names.iter().filter_map(Json::as_str).any(|name| name.contains("Eagle3") || name.contains("EAGLE3"))
    });
    let kind = config.str("speculators_model_type")?;
    let is_drafter =
        has_class || kind == Some("eagle3") || (kind.is_none() && config.get("draft_vocab_size").is_some());
    if !is_drafter {
        return Ok(());
    }
    config.take_object(OF_LAYER);
    let found = config.model_types().next().unwrap_or(LAYER_TYPE).to_owned();
    if found != LAYER_TYPE {
        return Err(config.wrong("model_type", format!("{found:?}"), format!("{LAYER_TYPE:?} in a draft model")));
    }
    config.set(DRAFTS, true.into());
    // Its output matrix is of its own vocabulary, whatever the config of the model says that it was made from.
    config.set("tie_word_embeddings", false.into());
    for (key, computed) in VARIANTS {
        let of_eagle = config.get(EAGLE).and_then(|eagle| eagle.get(key));
        if let Some(found) = config.get(key).or(of_eagle).and_then(Json::as_bool).filter(|found| *found != computed) {
            return Err(config.wrong(key, found, computed.to_string()));
        }
    }
    Ok(())
}

/// Adds the keys of a draft model: the layers that it reads, the sizes of the model, and the token of each logit.
pub(super) fn add_keys(keys: &mut Keys<'_>, files: &Safetensors) -> Result<(), HuggingFaceError> {
    let config = keys.config;
    if !config.is_set(DRAFTS) {
        return Ok(());
    }
    if let Some(layers) = layers(config)? {
        keys.add("target_layers", &layers[..]);
    }
    if let Some(size) = config.u32("target_hidden_size")? {
        keys.add("target_hidden_size", size);
    }
    if let Some(is_before) = config.bool("norm_before_residual")? {
        keys.add("norm_before_residual", is_before);
    }
    if let Some(tokens) = tokens(files)? {
        keys.add("draft_tokens", &tokens[..]);
    }
    Ok(())
}

/// The layers of the model whose inputs the draft model reads; `None` for the usual ones. Configs of SpecForge name the layers whose
/// outputs it reads, in an object of their own; those of `speculators` count as vLLM does, from the embedding.
fn layers(config: &Config) -> Result<Option<Vec<u32>>, HuggingFaceError> {
    let of_eagle = config.get(EAGLE).and_then(|eagle| eagle.get(READ_LAYERS)).filter(|list| !list.is_null());
    let (list, before) = match of_eagle {
        Some(list) => (Some(list), 1),
        None => (config.get(READ_LAYERS), 0),
    };
    let Some(list) = list else { return Ok(None) };
    let wrong = || config.wrong(READ_LAYERS, list, "a list of layers");
    let layer = |layer: &Json| u32::try_from(layer.as_u64()?).ok()?.checked_add(before);
    let layers = list.as_array().ok_or_else(wrong)?.iter().map(layer).collect::<Option<Vec<u32>>>();
    Ok(Some(layers.ok_or_else(wrong)?).filter(|layers| !layers.is_empty()))
}

/// The token of each logit; `None` if they are those of the model.
fn tokens(files: &Safetensors) -> Result<Option<Vec<u32>>, HuggingFaceError> {
    let Some(tensor) = files.tensors().iter().find(|tensor| tensor.name == DISTANCES) else { return Ok(None) };
    let wrong = || {
        let (tensor_name, dtype) = (tensor.name.clone(), tensor.dtype.name.to_owned());
        HuggingFaceFault::NoDistances { tensor: tensor_name, dtype }.in_file(files.path(tensor))
    };
    let bytes = files.bytes(tensor).ok_or_else(wrong)?;
    let distances: Vec<i64> = match tensor.dtype.name {
        "I64" => bytes.as_slice().as_chunks().0.iter().map(|value| i64::from_le_bytes(*value)).collect(),
        "I32" => bytes.as_slice().as_chunks().0.iter().map(|value| i32::from_le_bytes(*value).into()).collect(),
        _ => return Err(wrong()),
    };
    let token = |(logit, distance): (i64, i64)| u32::try_from(logit.checked_add(distance)?).ok();
    (0..).zip(distances).map(token).collect::<Option<Vec<u32>>>().ok_or_else(wrong).map(Some)
}
