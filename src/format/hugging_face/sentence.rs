//! How a directory for sentence-transformers makes embeddings: its list of modules, with a folder for each.

use std::path::{Path, PathBuf};

use cuelight_shaders::quant::Format;
use serde_json::Value as Json;

use super::answers::StatedAnswers;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::small_files::SmallFiles;
use super::table::Entry;
use crate::format::gguf::TensorInfo;
use crate::format::safetensors::Safetensors;

/// How embeddings are made; nothing for a directory without a list of modules.
#[derive(Default)]
pub(super) struct Sentence {
    /// The value of the key `pooling_type` of GGUF files.
    pub pooling: Option<u32>,
    /// The projections after pooling, in their order.
    pub projections: Vec<(PathBuf, Safetensors)>,
    /// The tokens whose logits are the score of a reranker.
    pub answers: Option<StatedAnswers>,
}

/// The names of projections in GGUF files.
const PROJECTIONS: [&str; 2] = ["dense_2.weight", "dense_3.weight"];

impl Sentence {
    /// Reads the modules of a directory.
    pub(super) fn read(folder: &Path, files: &mut SmallFiles) -> Result<Self, HuggingFaceError> {
        let mut sentence = Sentence::default();
        let modules = files.json("modules.json")?.unwrap_or_default();
        for module in modules.as_array().into_iter().flatten() {
            let text = |key: &str| module.get(key).and_then(Json::as_str).unwrap_or_default();
            let (kind, path) = (text("type"), text("path"));
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" | "Normalize" => {}
                "LogitScore" => sentence.answers = Some(answers(folder, path, files)?),
                "Pooling" => sentence.pooling = Some(pooling(folder, path, files)?),
                "Dense" if sentence.projections.len() < PROJECTIONS.len() => {
                    check_dense(folder, path, files)?;
                    let folder = folder.join(path);
                    let weights = Safetensors::open(&folder)?;
                    sentence.projections.push((folder, weights));
                }
                _ => {
                    return Err(wrong(
                        &folder.join("modules.json"),
                        "type",
                        kind,
                        "Transformer, Pooling, Dense, Normalize or LogitScore",
                    ));
                }
            }
        }
        Ok(sentence)
    }

    /// The projections as tensors of a GGUF file.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, HuggingFaceError> {
        let named = self.projections.iter().zip(PROJECTIONS);
        named.map(|((folder, files), name)| projection(folder, files, name)).collect()
    }
}

fn wrong(path: &Path, key: &str, found: impl ToString, wanted: &str) -> HuggingFaceError {
    let fault =
        HuggingFaceFault::WrongValue { key: key.to_owned(), found: found.to_string(), wanted: wanted.to_owned() };
    fault.in_file(path)
}

/// The pooling of the configuration in folder `path`. Of several kinds at once, embeddings would be several vectors.
fn pooling(folder: &Path, path: &str, files: &mut SmallFiles) -> Result<u32, HuggingFaceError> {
    const KINDS: [(&str, &str, u32); 3] = [
        ("pooling_mode_mean_tokens", "mean", 1),
        ("pooling_mode_cls_token", "cls", 2),
        ("pooling_mode_lasttoken", "lasttoken", 3),
    ];
    let name = format!("{path}/config.json");
    let config = files.json(&name)?.unwrap_or_default();
    if let Some(mode) = config.get("pooling_mode") {
        let kind = KINDS.iter().find(|(_, word, _)| *mode == *word);
        return kind
            .map(|kind| kind.2)
            .ok_or_else(|| wrong(&folder.join(&name), "pooling_mode", mode, "\"mean\", \"cls\" or \"lasttoken\""));
    }
    let flags = config.as_object().into_iter().flatten();
    let mut set = flags.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Json::Bool(true));
    let (first, second) = (set.next(), set.next());
    let kind = first.and_then(|(key, _)| KINDS.iter().find(|(flag, _, _)| key == flag)).filter(|_| second.is_none());
    kind.map(|kind| kind.2).ok_or_else(|| {
        let found = second.or(first).map_or("no pooling_mode", |(key, _)| key.as_str());
        wrong(&folder.join(&name), "pooling_mode", found, "one of the mean, the first token or the last token")
    })
}

/// The tokens of the configuration in folder `path`.
fn answers(folder: &Path, path: &str, files: &mut SmallFiles) -> Result<StatedAnswers, HuggingFaceError> {
    const KEYS: [&str; 2] = ["true_token_id", "false_token_id"];
    let name = format!("{path}/config.json");
    let config = files.json(&name)?.unwrap_or_default();
    let [yes, no] = KEYS.map(|key| config.get(key).unwrap_or(&Json::Null));
    let wanted = "the tokens yes and no of a model of the type qwen3; the prompts of other rerankers are not known";
    let wrong = wrong(&folder.join(&name), &KEYS.join(" and "), format!("{yes} and {no}"), wanted);
    Ok(StatedAnswers { tokens: [yes, no].map(Json::as_u64), wrong })
}

/// Checks that a projection is linear: then it may come before pooling as well as after it.
fn check_dense(folder: &Path, path: &str, files: &mut SmallFiles) -> Result<(), HuggingFaceError> {
    let name = format!("{path}/config.json");
    let config = files.json(&name)?.unwrap_or_default();
    let activation = config.get("activation_function").and_then(Json::as_str).unwrap_or("none");
    if !activation.ends_with("Identity") {
        return Err(wrong(&folder.join(&name), "activation_function", activation, "Identity"));
    }
    if config.get("bias") != Some(&Json::Bool(false)) {
        return Err(wrong(&folder.join(&name), "bias", "true", "false"));
    }
    Ok(())
}

/// The matrix of a projection under another name.
fn projection(folder: &Path, files: &Safetensors, name: &str) -> Result<Entry, HuggingFaceError> {
    let Some(tensor) = files.tensor("linear.weight") else {
        return Err(HuggingFaceFault::MissingKey { key: "linear.weight".to_owned() }.in_file(folder));
    };
    let (tensor_name, shape) = (tensor.name.clone(), tensor.shape.clone());
    let format = match tensor.dtype.name {
        "F32" => Format::F32,
        "F16" => Format::F16,
        "BF16" => Format::BF16,
        dtype => {
            let fault = HuggingFaceFault::TensorType { tensor: tensor_name, dtype: dtype.to_owned() };
            return Err(fault.in_file(files.path(tensor)));
        }
    };
    let bytes = files.bytes(tensor).filter(|_| shape.len() == 2);
    let wrong_shape = || HuggingFaceFault::TensorShape { tensor: tensor_name, shape }.in_file(files.path(tensor));
    let bytes = bytes.ok_or_else(wrong_shape)?;
    let info = TensorInfo {
        name: name.to_owned(),
        dims: tensor.shape.iter().rev().map(|&size| size as u64).collect(),
        ggml_type: format.ggml_id(),
        shard: tensor.shard,
        start: tensor.range.start as u64,
        n_bytes: Some(tensor.range.len() as u64),
    };
    Ok((info, bytes))
}
