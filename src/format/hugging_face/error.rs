//! The faults of a Hugging Face directory, each with a one-sentence message.

use std::path::{Path, PathBuf};

use crate::format::safetensors::SafetensorsError;
use crate::mapped_file::Change;

/// The key that names the repository of a language model.
pub(super) const TEXT_MODEL: &str = "text_model_id";

/// Why a directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// Its safetensors files are damaged or missing.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Another file is damaged, or the model is not supported.
    #[error("{}: {fault}", .path.display())]
    Directory {
        /// The file, or the directory.
        path: PathBuf,
        /// The fault; boxed to keep `Result`s small.
        #[source]
        fault: Box<HuggingFaceFault>,
    },
}

/// What is wrong with a file of the directory, or not supported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum HuggingFaceFault {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("is not a model: it has no config.json")]
    NoConfig,
    #[error("it changed while it was read ({0})")]
    Changed(Change),
    #[error("is {bytes} bytes long; at most {most} are allowed")]
    Long { bytes: usize, most: usize },
    #[error("is not valid JSON: {0}")]
    BadJson(serde_json::Error),
    #[error("is not valid UTF-8")]
    NotUtf8,
    #[error("lacks the key {key:?}")]
    MissingKey { key: String },
    #[error("key {key:?} is {found}, but must be {wanted}")]
    WrongValue { key: String, found: String, wanted: String },
    #[error("model_type {found:?} is not supported from safetensors; supported are: {known}; a GGUF version may load")]
    UnknownModelType { found: String, known: String },
    #[error(
        "model_type {found:?} has no encoder of images or audio that is supported from safetensors; supported are: {known}"
    )]
    UnknownEncoder { found: String, known: String },
    #[error("has neither a preprocessor_config.json nor {object} in processor_config.json")]
    NoPreprocessor { object: &'static str },
    #[error(
        "tensor {tensor:?} is packed with a factor or in an order of its own, which encoders are not computed with"
    )]
    EncoderWeights { tensor: String },
    #[error(
        "is in Mistral's own layout ({found}); the layout of Hugging Face is needed, with config.json and model.safetensors"
    )]
    LayoutOfMistral { found: &'static str },
    #[error("lacks the weights of {id:?}, which {key} names: {remedy}")]
    Elsewhere { key: &'static str, id: String, remedy: &'static str },
    #[error(
        "is quantized with {method:?}, which is not supported from safetensors; use unquantized weights or a GGUF version"
    )]
    Quantized { method: String },
    #[error("tensor {tensor:?} has no scales {scales:?} that fit it: {needed}")]
    Packed { tensor: String, scales: String, needed: &'static str },
    #[error("tensor {tensor:?} must give each input a group that has scales, and each group a multiple of 32 inputs")]
    GroupOrder { tensor: String },
    #[error(
        "tensor {tensor:?} has its groups in the order of activations, which is supported for projections of a layer, but not for \
         experts, output matrices and matrices that are divided between heads"
    )]
    OrderedInputs { tensor: String },
    #[error("lacks the tensor {tensor:?}, although the config states that groups are in the order of activations")]
    NoGroupOrder { tensor: String },
    #[error("tensor {tensor:?} has the type {dtype}, but only F32, F16, BF16, and F8_E4M3 with scales are supported")]
    TensorType { tensor: String, dtype: String },
    #[error("tensor {tensor:?} of type {dtype} must be of type I64 or I32 and give each logit a token of the model")]
    NoDistances { tensor: String, dtype: String },
    #[error("tensor {tensor:?} of type {dtype} must be of type I64 and have no negative numbers")]
    NoIntegers { tensor: String, dtype: String },
    #[error("tensor {tensor:?} has the shape {shape:?}, which is not possible for it in this model")]
    TensorShape { tensor: String, shape: Vec<usize> },
    #[error("tensor {tensor:?} is not known for model_type {model_type:?}")]
    UnknownTensor { tensor: String, model_type: String },
    #[error("lacks the tensor {tensor:?}")]
    MissingTensor { tensor: String },
    #[error("tensors {tensor:?} and {other:?} hold the same weights")]
    SameTensor { tensor: String, other: String },
    #[error("lacks expert {expert} of the tensors {tensors:?}")]
    MissingExpert { tensors: String, expert: usize },
}

impl HuggingFaceError {
    /// Whether the directory has no language model, because that is elsewhere.
    #[must_use]
    pub fn lacks_language_model(&self) -> bool {
        let HuggingFaceError::Directory { fault, .. } = self else { return false };
        matches!(**fault, HuggingFaceFault::Elsewhere { key: TEXT_MODEL, .. })
    }
}

impl HuggingFaceFault {
    /// The fault with its file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> HuggingFaceError {
        HuggingFaceError::Directory { path: path.to_owned(), fault: Box::new(self) }
    }
}
