//! The text side of a directory: its tokenizer, its chat template, and the tokens that end a text.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::pieces::{self, spelling};
use super::small_files::SmallFiles;
use crate::format::gguf::write::GgufBuilder;
use crate::format::tokenizer::piece_keys::{PieceFile, PieceSettings};
use crate::format::tokenizer::{JsonSettings, Tokenizer, TokenizerError, gguf_keys};
use crate::mapped_file::MappedFile;

/// The file of a tokenizer.
const JSON: &str = "tokenizer.json";

/// The file of a tokenizer of Mistral's own programs.
const TEKKEN: &str = "tekken.json";

/// The file of a tokenizer of SentencePiece, which is used where there is no other.
const PIECES: &str = "tokenizer.model";

/// Most bytes of a `tokenizer.json`. The largest have some tens of MiB.
const MOST_TOKENIZER_BYTES: usize = 256 << 20;

/// Bytes of memory for each byte of a `tokenizer.json`: its parsed form, two copies of the tokenizer, and the vocabulary.
const BYTES_OF_BYTE: u64 = 16;

/// Most bytes of a `tokenizer.model`. The largest have some MiB.
const MOST_MODEL_BYTES: usize = 64 << 20;

/// What a directory has for text.
pub struct Text {
    path: PathBuf,
    tokenizer: Vocabulary,
    settings: JsonSettings,
    /// The chat template, and the one for conversations with tools.
    pub(super) templates: [Option<String>; 2],
}

/// The files of a tokenizer.
enum Vocabulary {
    Nothing,
    /// A `tokenizer.json`.
    Json(Arc<MappedFile>),
    /// A `tekken.json`.
    Tekken(Arc<MappedFile>),
    /// A `tokenizer.model`, and what other files state about it.
    Pieces(Arc<MappedFile>, Box<PieceSettings>),
}

impl Text {
    /// `generation` is what `generation_config.json` has.
    pub(super) fn read(
        folder: &Path,
        config: &Config,
        generation: &Json,
        files: &mut SmallFiles,
    ) -> Result<Self, HuggingFaceError> {
        let stated = files.json("tokenizer_config.json")?.unwrap_or_default();
        let ends = tokens(generation.get("eos_token_id"));
        let settings = JsonSettings {
            bos: spelling(stated.get("bos_token")),
            eos: spelling(stated.get("eos_token")),
            ends: if ends.is_empty() { tokens(config.get("eos_token_id")) } else { ends },
            adds_bos: stated.get("add_bos_token") == Some(&Json::Bool(true)),
        };
        let (name, tokenizer) = if let Some(json) = files.map(JSON, MOST_TOKENIZER_BYTES)? {
            (JSON, Vocabulary::Json(json))
        } else if let Some(tekken) = files.map(TEKKEN, MOST_TOKENIZER_BYTES)? {
            (TEKKEN, Vocabulary::Tekken(tekken))
        } else if let Some(model) = files.map(PIECES, MOST_MODEL_BYTES)? {
            let settings = pieces::settings(folder, &stated, settings.ends.clone(), files)?;
            (PIECES, Vocabulary::Pieces(model, Box::new(settings)))
        } else {
            (JSON, Vocabulary::Nothing)
        };
        Ok(Text { path: folder.join(name), tokenizer, settings, templates: templates(&stated, files)? })
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] when the directory has no file of a tokenizer, or it cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        match self.pieces() {
            Some(pieces) => pieces.tokenizer(),
            None => Tokenizer::from_json_with(&self.path, &self.json()?, &self.settings),
        }
    }

    /// The `tokenizer.model`, if it is used.
    fn pieces(&self) -> Option<PieceFile<'_>> {
        let Vocabulary::Pieces(mapped, settings) = &self.tokenizer else { return None };
        Some(PieceFile { path: &self.path, bytes: (**mapped).as_ref(), settings })
    }

    /// The content of `tokenizer.json`, or what it would be.
    fn json(&self) -> Result<Cow<'_, str>, TokenizerError> {
        match &self.tokenizer {
            Vocabulary::Json(mapped) => Ok(self.utf8(mapped)?.into()),
            Vocabulary::Tekken(mapped) => Ok(Tokenizer::json_of_tekken(&self.path, self.utf8(mapped)?)?.into()),
            Vocabulary::Pieces(..) | Vocabulary::Nothing => Err(self.fault("the file is missing".to_owned())),
        }
    }

    fn utf8<'a>(&self, mapped: &'a MappedFile) -> Result<&'a str, TokenizerError> {
        str::from_utf8(mapped.as_ref()).map_err(|error| self.fault(error.to_string()))
    }

    /// Adds the tokenizer's keys to a GGUF file with `n_tokens` rows in its embedding.
    ///
    /// # Errors
    /// [`TokenizerError`] as [`Text::tokenizer`], or when a GGUF file cannot state the rules of the tokenizer.
    pub fn add_keys(&self, n_tokens: usize, file: GgufBuilder) -> Result<GgufBuilder, TokenizerError> {
        match self.pieces() {
            Some(pieces) => pieces.add_keys(n_tokens, file),
            None => gguf_keys::add(&self.path, &self.json()?, &self.settings, n_tokens, file),
        }
    }

    /// Bytes of memory that building the tokenizer takes; 0 if there is none.
    ///
    /// # Errors
    /// [`TokenizerError`] when a `tokenizer.model` cannot be used.
    pub fn memory_bytes(&self) -> Result<u64, TokenizerError> {
        match (&self.tokenizer, self.pieces()) {
            (_, Some(pieces)) => pieces.memory_bytes(),
            (Vocabulary::Json(mapped) | Vocabulary::Tekken(mapped), None) => {
                Ok((**mapped).as_ref().len() as u64 * BYTES_OF_BYTE)
            }
            (_, None) => Ok(0),
        }
    }

    fn fault(&self, reason: String) -> TokenizerError {
        TokenizerError::Json { path: self.path.clone(), reason }
    }
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
