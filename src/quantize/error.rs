//! Why a model cannot be quantized.

use std::path::PathBuf;

use cuelight_shaders::quant::Format;

use crate::format::gguf::GgufError;
use crate::format::tokenizer::TokenizerError;

/// Why a model cannot be quantized.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum QuantizeError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("weights cannot be quantized to {name:?}; formats to quantize to: {known}")]
    UnknownRecipe { name: String, known: String },
    #[error("{text:?} is not a pattern and a format with an equals sign between, like attn_v=q6_k")]
    NotAnOverride { text: String },
    #[error("the pattern {pattern:?} is not a regular expression")]
    Pattern { pattern: String, source: Box<regex::Error> },
    #[error(
        "{}: tensor {tensor:?} is quantized already, in {format}; quantizing it again loses precision: start from an F16, BF16 \
         or F32 model",
        path.display()
    )]
    AlreadyQuantized { path: PathBuf, tensor: String, format: Format },
    #[error("{}: tensor {tensor:?}: {source}", path.display())]
    Tensor { path: PathBuf, tensor: String, source: cuelight_shaders::quantize::QuantizeError },
    #[error("{}: tensor {tensor:?} has rows of {columns} values, which is not a multiple of {format}'s block", path.display())]
    Ragged { path: PathBuf, tensor: String, columns: u64, format: Format },
    #[error("{}: no matrix has a name that matches the pattern {pattern:?}", path.display())]
    UnusedPattern { path: PathBuf, pattern: String },
    #[error("{}: not an importance matrix: {reason}", path.display())]
    NotImportance { path: PathBuf, reason: String },
    #[error(
        "{}: the importance of tensor {tensor:?} has {found} columns, but the tensor has {expected}: the matrix belongs to another model",
        path.display()
    )]
    ImportanceSize { path: PathBuf, tensor: String, found: usize, expected: usize },
    #[error(
        "{}: tensor {tensor:?} would get {format}, which is unusable without the importance of the tensor's columns: give an \
         importance matrix that was measured on a text, or choose a format with more bits",
        path.display()
    )]
    NeedsImportance { path: PathBuf, tensor: String, format: Format },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{}: another process is writing this file", path.display())]
    Locked { path: PathBuf },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: the matrix of {tensor:?} has its inputs in the order of activations, which a GGUF file cannot state: start from another \
         version of the model",
        path.display()
    )]
    InputOrder { path: PathBuf, tensor: String },
    #[error("the quantization was cancelled")]
    Cancelled,
}
