//! Why a tokenizer cannot be built, or a text cannot be tokenized.

use std::path::PathBuf;

use crate::cancel::LoadCancelled;
use crate::format::gguf::GgufError;

/// Why a tokenizer cannot be built, or a text cannot be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file lacks a key, or a key has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The kind of tokenizer is not implemented.
    #[error("the tokenizer model {model:?} is not supported; known: gpt2, llama, gemma4")]
    UnknownModel {
        /// The value of the key `tokenizer.ggml.model`.
        model: String,
    },
    /// The pre-tokenizer is not implemented. A default would give wrong tokens.
    #[error("the pre-tokenizer {name:?} (key \"tokenizer.ggml.pre\") is not known; known: {known}")]
    UnknownPreTokenizer {
        /// The value of the key.
        name: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the tokenizer's vocabulary cannot be used: {0}")]
    Vocabulary(String),
    /// A token or the vocabulary is longer than any real one.
    #[error("the tokenizer's vocabulary cannot be used: {what} has {found} {unit}; at most {most} are allowed")]
    TooLong {
        /// What is too long.
        what: String,
        /// Its length.
        found: usize,
        /// The unit of its length.
        unit: &'static str,
        /// The limit.
        most: usize,
    },
    /// The load was ended early.
    #[error(transparent)]
    Cancelled(#[from] LoadCancelled),
    /// A pattern exceeded its limit on a text.
    #[error("the text cannot be split into words: {0}")]
    Pattern(String),
    /// A `tokenizer.json` that cannot be used.
    #[error("{}: not a usable tokenizer.json: {reason}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A `tekken.json` that cannot be used.
    #[error("{}: not a usable tekken.json: {reason}", .path.display())]
    Tekken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A `tokenizer.model` that cannot be used.
    #[error("{}: not a usable model of SentencePiece: {reason}", .path.display())]
    SentencePiece {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
