//! Why a directory cannot be quantized to 8-bit weights and activations.

use std::path::PathBuf;

use crate::checkpoint::OpenError;
use crate::format::hugging_face::HuggingFaceError;
use crate::format::safetensors::write::WriteError;
use crate::mapped_file::FileChange;
use crate::model::ModelError;

/// Why a directory cannot be quantized to 8-bit weights and activations.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum W8a8Error {
    #[error("{text:?} is neither \"max\" nor \"percentile:P\" with P above 50 and at most 100, like percentile:99.9")]
    NotAClip { text: String },
    #[error("{text:?} is not a number from 0 to 1")]
    NotAStrength { text: String },
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    FileChange(#[from] FileChange),
    #[error("{}: is no Hugging Face directory, but 8-bit weights and activations are made of one", path.display())]
    NotADirectory { path: PathBuf },
    #[error(
        "{}: is quantized already; quantizing it again loses precision: start from the BF16, F16 or F32 version of the model",
        path.display()
    )]
    AlreadyQuantized { path: PathBuf },
    #[error(
        "{}: has no matrix in a layer that can be quantized: none is an ordinary linear layer with a multiple of 32 inputs",
        path.display()
    )]
    NothingToQuantize { path: PathBuf },
    #[error("{}: no norm of its layers can be smoothed{reasons}", path.display())]
    NothingToSmooth { path: PathBuf, reasons: String },
    #[error(
        "the largest inputs of {tensor:?} have {found} columns, but it has {expected}: they belong to another model"
    )]
    InputSize { tensor: String, found: usize, expected: usize },
    #[error("{}: tensor {tensor:?}: {source}", path.display())]
    Tensor { path: PathBuf, tensor: String, source: cuelight_shaders::quantize::QuantizeError },
    #[error("{}: is inside of the directory of the model; give another place for the output", path.display())]
    Inside { path: PathBuf },
    #[error("{}: holds the directory of the model; give another place for the output", path.display())]
    Around { path: PathBuf },
    #[error("{}: is not a directory that a quantization to w8a8 wrote, so it is not replaced", path.display())]
    NotReplaceable { path: PathBuf },
    #[error("{}: is in the way, and no unfinished quantization; remove it or give another name", path.display())]
    NotPartial { path: PathBuf },
    #[error("{}: another process is writing this directory", path.display())]
    Locked { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: is not the text of a JSON object", path.display())]
    NotAnObject { path: PathBuf },
    #[error("the quantization was cancelled")]
    Cancelled,
}

impl From<WriteError> for W8a8Error {
    fn from(WriteError { path, source }: WriteError) -> Self {
        W8a8Error::Write { path, source }
    }
}
