//! The files of a repository that make a Hugging Face directory, by their names.
//!
//! Only what a model needs is named: never pickled weights, and no second copy of the weights in another layout.

use std::path::Path;

use cuelight_engine::format::safetensors;

use super::error::HubError;

/// What every directory has. It is always the first file of a model.
const CONFIG: &str = "config.json";

/// The tokenizers that load, each with the files that belong to it. The first that a repository has is used.
const TOKENIZERS: [&[&str]; 3] =
    [&["tokenizer.json"], &["tekken.json"], &["tokenizer.model", "added_tokens.json", "special_tokens_map.json"]];

/// What a directory may have besides.
const OPTIONAL: [&str; 14] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    // How images and audio are prepared, by old and by new processors.
    "preprocessor_config.json",
    "processor_config.json",
    // The modules of sentence-transformers, under the names that it gives them.
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
    "1_LogitScore/config.json",
];

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Most bytes of an index. The largest models have some MiB.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// The endings of weights that are Python pickles.
const PICKLED: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];

/// Whether the files of a repository have weights in safetensors.
#[must_use]
pub fn has_weights(files: &[String]) -> bool {
    files.iter().any(|file| file == SINGLE || file == INDEX)
}

/// The first file of pickled weights.
#[must_use]
pub fn pickled(files: &[String]) -> Option<&String> {
    files.iter().find(|file| PICKLED.iter().any(|ending| file.ends_with(ending)))
}

/// The files to get, in this order, before the shards that an index names. The last one is the weights or their index, so
/// that a directory with its weights is complete.
///
/// # Errors
/// [`HubError::PickleOnly`] or [`HubError::MissingFile`].
pub fn before_shards(repo: &str, files: &[String]) -> Result<Vec<String>, HubError> {
    let has = |name: &&str| files.iter().any(|file| file == name);
    let missing = |file: &str| HubError::MissingFile { repo: repo.to_owned(), file: file.to_owned() };
    // An index takes precedence, as when the directory is loaded.
    let Some(weights) = [INDEX, SINGLE].into_iter().find(|name| has(name)) else {
        let pickle_only = |file: &String| HubError::PickleOnly { repo: repo.to_owned(), file: file.clone() };
        return Err(pickled(files).map_or_else(|| missing(SINGLE), pickle_only));
    };
    let tokenizer = TOKENIZERS.into_iter().find(|files| files.first().is_some_and(has));
    let tokenizer = tokenizer.ok_or_else(|| missing(TOKENIZERS[0][0]))?;
    if !has(&CONFIG) {
        return Err(missing(CONFIG));
    }
    let others = tokenizer.iter().copied().chain(OPTIONAL).filter(has);
    Ok([CONFIG].into_iter().chain(others).chain([weights]).map(str::to_owned).collect())
}

/// The shards that the last of these files names, if it is an index.
///
/// # Errors
/// [`HubError::Io`] when it cannot be read, [`HubError::BadIndex`] when it is no index of shards.
pub fn shards(path: &Path) -> Result<Vec<String>, HubError> {
    if !path.ends_with(INDEX) {
        return Ok(Vec::new());
    }
    let bytes = path.metadata().map_err(HubError::io("read", path))?.len();
    if bytes > MOST_INDEX_BYTES {
        let reason = format!("it has {bytes} bytes; at most {MOST_INDEX_BYTES} are allowed");
        return Err(HubError::BadIndex { path: path.to_owned(), reason });
    }
    let text = std::fs::read(path).map_err(HubError::io("read", path))?;
    safetensors::shard_names(&text)
        .map_err(|fault| HubError::BadIndex { path: path.to_owned(), reason: fault.to_string() })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_what_a_model_needs_is_named_and_its_weights_last() {
        let files = names(&[
            "1_Pooling/config.json",
            "README.md",
            "chat_template.jinja",
            "config.json",
            "consolidated.safetensors",
            "generation_config.json",
            "model.safetensors",
            "modules.json",
            "onnx/model.onnx",
            "original/model.safetensors",
            "preprocessor_config.json",
            "processor_config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
        ]);
        let wanted = [
            "config.json",
            "tokenizer.json",
            "generation_config.json",
            "chat_template.jinja",
            "preprocessor_config.json",
            "processor_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "model.safetensors",
        ];
        assert_eq!(before_shards("a/b", &files).unwrap(), wanted);
        let of_pieces = names(&["added_tokens.json", "config.json", "model.safetensors", "tokenizer.model"]);
        let wanted = ["config.json", "tokenizer.model", "added_tokens.json", "model.safetensors"];
        assert_eq!(before_shards("a/b", &of_pieces).unwrap(), wanted);
        let indexed = [files, names(&["model.safetensors.index.json"])].concat();
        assert_eq!(before_shards("a/b", &indexed).unwrap().last().unwrap(), INDEX);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (files, part) in [
            (&["config.json", "tokenizer.json", "pytorch_model.bin"][..], "pytorch_model.bin"),
            (&["config.json", "tokenizer.json"], "no model.safetensors"),
            (&["config.json", "model.safetensors"], "no tokenizer.json"),
            (&["tokenizer.json", "model.safetensors"], "no config.json"),
        ] {
            let error = before_shards("a/b", &names(files)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn shards_are_file_names_of_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join(INDEX);
        std::fs::write(&index, r#"{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}"#)
            .unwrap();
        assert_eq!(shards(&index).unwrap(), ["1.safetensors", "2.safetensors"]);
        for wrong in ["{}", r#"{"weight_map": {"a": "../1.safetensors"}}"#, r#"{"weight_map": {"a": "/1.bin"}}"#] {
            std::fs::write(&index, wrong).unwrap();
            assert!(matches!(shards(&index), Err(HubError::BadIndex { .. })), "{wrong}");
        }
        assert!(shards(&folder.path().join(SINGLE)).unwrap().is_empty());
    }
}
