//! The faults of adapters, each with a one-sentence message.

use std::path::{Path, PathBuf};

use crate::format::gguf::GgufError;
use crate::format::safetensors::SafetensorsError;

/// Why an adapter cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The GGUF file is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The safetensors file is damaged.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The adapter is not supported, or does not fit the model.
    #[error("{}: {fault}", path.display())]
    Adapter {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        fault: AdapterFault,
    },
}

/// What is wrong with an adapter.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum AdapterFault {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("is neither a GGUF adapter nor a PEFT directory with adapter_config.json")]
    NoConfig,
    #[error("has {bytes} bytes; at most {most} are allowed")]
    LongConfig { bytes: u64, most: u64 },
    #[error("is not a valid configuration of an adapter: {0}")]
    BadConfig(String),
    #[error("the directory has no adapter_model.safetensors")]
    NoWeights,
    #[error("only {file:?} has the weights, but pickled weights are not read: save the adapter as safetensors")]
    PickleOnly { file: &'static str },
    #[error("`{field}` is {value}, which is not supported")]
    Unsupported { field: &'static str, value: String },
    #[error("`{key}` is {found:?}, but must be {expected:?}")]
    Kind { key: &'static str, found: String, expected: &'static str },
    #[error("tensor {tensor:?} is not a matrix of a low-rank adapter")]
    UnknownTensor { tensor: String },
    #[error("tensor {tensor:?} lacks its other half {other:?}")]
    MissingHalf { tensor: String, other: String },
    #[error("tensor {tensor:?} has the type {dtype}, but only F32, F16 and BF16 are supported")]
    TensorType { tensor: String, dtype: String },
    #[error("tensor {tensor:?} has {found} dimensions instead of 2")]
    Dimensions { tensor: String, found: usize },
    #[error("tensor {tensor:?} has rank {found}, but the configuration states {stated}")]
    Rank { tensor: String, found: usize, stated: usize },
    #[error("tensor {tensor:?} has no values")]
    EmptyTensor { tensor: String },
    #[error("the adapter has no tensors")]
    Empty,
    #[error("the adapter is for the architecture {found:?}, but the model is of {expected:?}")]
    Architecture { found: String, expected: String },
    #[error("PEFT adapters are not supported for the architecture {0:?}")]
    UnknownArchitecture(String),
    #[error("tensor {tensor:?} fits no projection of the model that an adapter can change")]
    NoTarget { tensor: String },
    #[error("tensor {tensor:?} changes the token embedding or the output head, for which the model reserves no memory")]
    NoVocabulary { tensor: String },
    #[error("tensor {tensor:?} changes experts, for which the model reserves no memory")]
    NoExperts { tensor: String },
    #[error("tensors {tensor:?} and another one change the same projection")]
    SameTarget { tensor: String },
    #[error("tensor {tensor:?} has the shape [{rows}, {columns}], but must be {expected}")]
    Shape { tensor: String, rows: usize, columns: usize, expected: String },
    #[error("tensor {tensor:?} has rank {found}; at most {most} is allowed")]
    RankTooLarge { tensor: String, found: usize, most: usize },
    #[error("tensor {tensor:?} has a value that is not a finite number")]
    NotFinite { tensor: String },
}

impl AdapterFault {
    /// The fault with its file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> AdapterError {
        AdapterError::Adapter { path: path.to_owned(), fault: self }
    }
}
