//! The text side of a directory: its tokenizer, its chat template, and the tokens that end a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::small_files::SmallFiles;
use crate::format::gguf::write::GgufBuilder;
use crate::format::tokenizer::{JsonSettings, Tokenizer, TokenizerError, gguf_keys};
use crate::mapped_file::MappedFile;

/// Most bytes of a `tokenizer.json`. The largest have some tens of MiB.
const MOST_TOKENIZER_BYTES: usize = 256 << 20;

/// Bytes of memory for each byte of a `tokenizer.json`: its parsed form, two copies of the tokenizer, and the vocabulary.
const BYTES_OF_BYTE: u64 = 16;

/// What a directory has for text.
pub struct Text {
    path: PathBuf,
    tokenizer: Option<Arc<MappedFile>>,
    has_other: bool,
    settings: JsonSettings,
    /// The chat template, and the one for conversations with tools.
    pub(super) templates: [Option<String>; 2],
}

impl Text {
    /// `generation` is what `generation_config.json` has.
    pub(super) fn read(
        folder: &Path,
        config: &Config,
        generation: &Json,
        files: &mut SmallFiles,
    ) -> Result<Self, HuggingFaceError> {
        let path = folder.join("tokenizer.json");
        let tokenizer = files.map("tokenizer.json", MOST_TOKENIZER_BYTES)?;
        let stated = files.json("tokenizer_config.json")?.unwrap_or_default();
        let ends = tokens(generation.get("eos_token_id"));
        let settings = JsonSettings {
            bos: spelling(&stated, "bos_token"),
            eos: spelling(&stated, "eos_token"),
            ends: if ends.is_empty() { tokens(config.get("eos_token_id")) } else { ends },
            adds_bos: stated.get("add_bos_token") == Some(&Json::Bool(true)),
        };
        let has_other = folder.join("tokenizer.model").is_file();
        Ok(Text { path, tokenizer, has_other, settings, templates: templates(&stated, files)? })
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] when the directory has no `tokenizer.json` or it cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_json_with(&self.path, self.json()?, &self.settings)
    }

    /// The content of `tokenizer.json`.
    fn json(&self) -> Result<&str, TokenizerError> {
        let mapped = self.tokenizer.as_deref().ok_or_else(|| self.missing())?;
        str::from_utf8(mapped.as_ref()).map_err(|error| self.fault(error.to_string()))
    }

    /// Adds the tokenizer's keys to a GGUF file with `n_tokens` rows in its embedding.
    ///
    /// # Errors
    /// [`TokenizerError`] as [`Text::tokenizer`], or when a GGUF file cannot state the rules of the tokenizer.
    pub fn add_keys(&self, n_tokens: usize, file: GgufBuilder) -> Result<GgufBuilder, TokenizerError> {
        gguf_keys::add(&self.path, self.json()?, &self.settings, n_tokens, file)
    }

    /// Bytes of memory that building the tokenizer takes; 0 if there is none.
    ///
    /// # Errors
    /// [`TokenizerError`] when the tokenizer is in a form that is not read.
    pub fn memory_bytes(&self) -> Result<u64, TokenizerError> {
        match &self.tokenizer {
            Some(mapped) => Ok((**mapped).as_ref().len() as u64 * BYTES_OF_BYTE),
            None if self.has_other => Err(self.missing()),
            None => Ok(0),
        }
    }

    fn fault(&self, reason: String) -> TokenizerError {
        TokenizerError::Json { path: self.path.clone(), reason }
    }

    fn missing(&self) -> TokenizerError {
        self.fault(if self.has_other {
            "the file is missing, and tokenizer.model is not read; save the tokenizer with transformers once to get it"
                .to_owned()
        } else {
            "the file is missing".to_owned()
        })
    }
}

/// A token's spelling: a string, or an object with it.
fn spelling(stated: &Json, key: &str) -> Option<String> {
    let value = stated.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// One token or a list of them. Others are left out: the ids of old configs are not always numbers.
fn tokens(value: Option<&Json>) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Json::Array(list)) => list.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The chat template and the one for tools: of a file of its own, else of `tokenizer_config.json`.
fn templates(stated: &Json, files: &mut SmallFiles) -> Result<[Option<String>; 2], HuggingFaceError> {
    if let Some(template) = files.text("chat_template.jinja")? {
        let tool_use = files.text("additional_chat_templates/tool_use.jinja")?;
        return Ok([Some(template), tool_use]);
    }
    let in_file = files.json("chat_template.json")?.unwrap_or_default();
    let text = |value: &Json| value.as_str().map(str::to_owned);
    Ok(match in_file.get("chat_template").or_else(|| stated.get("chat_template")) {
        Some(Json::Array(list)) => {
            let named =
                |name: &str| list.iter().find(|entry| entry["name"] == name).and_then(|entry| text(&entry["template"]));
            [named("default"), named("tool_use")]
        }
        Some(template) => [text(template), None],
        None => [None, None],
    })
}
