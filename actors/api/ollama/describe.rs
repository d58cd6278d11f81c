//! Describes models in Ollama's words.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use cuelight_engine::embedding::Product;
use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::models::ModelInfo;
use crate::pipeline::runtime::ServedModel;
use crate::serving::accept::find_output_rules;

/// How many bytes the weights of a model take; 0 before it was loaded.
pub(super) fn size_bytes(info: &ModelInfo) -> u64 {
    info.model.as_ref().map_or(0, |model| model.card.size_bytes)
}

/// `details`. What is known only of a loaded model is empty before.
pub(super) fn details(info: &ModelInfo) -> Value {
    let card = info.model.as_ref().map(|model| &model.card);
    let families: Vec<&str> = card.iter().map(|card| card.architecture.as_str()).collect();
    json!({
        "parent_model": "",
        "format": card.map_or("gguf", |card| card.file_format),
        "family": families.first().unwrap_or(&""),
        "families": families,
        "parameter_size": card.map(|card| parameter_size(card.n_params)).unwrap_or_default(),
        "quantization_level": card.map(|card| card.quantization.as_str()).unwrap_or_default(),
    })
}

/// What the model can do: completion, and of a loaded model perhaps insertion, tools, thinking, vision and audio; or embedding alone.
/// Ollama has no word for rerankers and classifiers.
pub(super) async fn capabilities(info: &ModelInfo) -> Vec<&'static str> {
    if let Some(embedding) = info.model.as_ref().map(|model| model.card.embedding).filter(|made| made.is_only) {
        return if embedding.product() == Product::Vectors { vec!["embedding"] } else { Vec::new() };
    }
    let mut capabilities = vec!["completion"];
    if let Some(model) = &info.model
        && let Ok(rules) = find_output_rules(model).await
    {
        let has_infill = model.tokenizer.infill().is_some();
        let known = [
            ("insert", has_infill),
            ("tools", rules.format.has_tool_calls()),
            ("thinking", rules.format.has_reasoning()),
            ("vision", model.takes(MediaKind::Image)),
            ("audio", model.takes(MediaKind::Audio)),
        ];
        capabilities.extend(known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name));
    }
    capabilities
}

/// `model_info`: the facts of the file under the names of GGUF. The context length is the one that requests can use here,
/// because clients size their prompts by it.
pub(super) fn model_info(model: &ServedModel) -> Value {
    let card = &model.card;
    let architecture = &card.architecture;
    let mut facts = Map::new();
    let mut insert = |name: String, value: Value| facts.insert(name, value);
    insert("general.architecture".to_owned(), json!(architecture));
    insert("general.basename".to_owned(), json!(card.name));
    insert("general.parameter_count".to_owned(), json!(card.n_params));
    insert(format!("{architecture}.context_length"), json!(model.limits.context_tokens));
    insert(format!("{architecture}.vocab_size"), json!(model.limits.vocab_size));
    if card.embedding.is_only {
        insert(format!("{architecture}.embedding_length"), json!(card.embedding.width));
    }
    Value::Object(facts)
}

/// A digest for clients that compare models by it. It is that of the name, because the digest of a large file takes minutes.
pub(super) fn digest(id: &str) -> String {
    Sha256::digest(id).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A time in RFC 3339 format.
pub(super) fn timestamp(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).unwrap_or_default().to_string()
}

/// When a model will be unloaded. One that stays has a time that clients show as forever.
pub(super) fn expires_at(info: &ModelInfo) -> String {
    const FOREVER: Duration = Duration::from_nanos(i64::MAX as u64);
    let left = info.unloads_in.unwrap_or(FOREVER);
    timestamp(SystemTime::now().checked_add(left).unwrap_or_else(SystemTime::now))
}

/// A number of weights, such as `8.0B` or `135.2M`.
fn parameter_size(weights: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let weights = weights as f64;
    match UNITS.into_iter().find(|(size, _)| weights >= *size) {
        Some((size, unit)) => format!("{:.1}{unit}", weights / size),
        None => format!("{weights}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_weights_is_short() {
        let sizes = [8_030_261_248, 134_515_008, 1500, 7].map(parameter_size);
        assert_eq!(sizes, ["8.0B", "134.5M", "1.5K", "7"]);
    }

    #[test]
    fn a_digest_is_that_of_the_name() {
        assert_eq!(digest("a").len(), 64);
        assert_ne!(digest("a"), digest("b"));
    }
}
