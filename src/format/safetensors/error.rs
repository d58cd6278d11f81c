//! The faults of safetensors files and their index, each with a one-sentence message.

use std::path::{Path, PathBuf};

use crate::mapped_file::Change;

/// A fault and the file that has it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", .path.display())]
pub struct SafetensorsError {
    /// The file.
    pub path: PathBuf,
    /// The fault; boxed to keep `Result`s small.
    #[source]
    pub fault: Box<SafetensorsFault>,
}

/// What is wrong with a file or an index.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum SafetensorsFault {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("it changed while it was read ({0})")]
    Changed(Change),
    #[error("not a safetensors file: it has {bytes} bytes, too few for a header")]
    NoHeader { bytes: usize },
    #[error("its header states a length of {length} bytes, but {available} are left; is the download complete?")]
    TruncatedHeader { length: u64, available: usize },
    #[error("its header states a length of {length} bytes; at most {most} are allowed")]
    LongHeader { length: u64, most: u64 },
    #[error("its header is not a table of tensors: {0}")]
    BadHeader(serde_json::Error),
    #[error("tensor {tensor:?} has the unknown type {dtype:?}")]
    UnknownType { tensor: String, dtype: String },
    #[error("tensor {tensor:?} has {dimensions} dimensions; at most {most} are allowed")]
    TooManyDimensions { tensor: String, dimensions: usize, most: usize },
    #[error("tensor {tensor:?} is larger than any memory")]
    HugeTensor { tensor: String },
    #[error("tensor {tensor:?} occupies {found} bytes, but its shape needs {expected}")]
    WrongSize { tensor: String, found: u64, expected: u64 },
    #[error("tensor {tensor:?} ends before it starts")]
    BackwardRange { tensor: String },
    #[error(
        "tensor {tensor:?} lies outside the file: it ends at byte {end} of {file_bytes}; is the download complete?"
    )]
    TensorOutside { tensor: String, end: u64, file_bytes: usize },
    #[error("tensor {tensor:?} is also in {}", .other.display())]
    DuplicateTensor { tensor: String, other: PathBuf },
    #[error("is {bytes} bytes long; at most {most} are allowed")]
    LongIndex { bytes: usize, most: usize },
    #[error("not an index of safetensors files: {0}")]
    BadIndex(serde_json::Error),
    #[error("names no file")]
    EmptyIndex,
    #[error("tensor {tensor:?} is said to be in {file:?}, which is not the name of a file in this directory")]
    ShardName { tensor: String, file: String },
    #[error("the shard of tensor {tensor:?} is missing: {error}; is the download complete?")]
    MissingShard { tensor: String, error: std::io::Error },
    #[error("lacks the tensor {tensor:?}, which the index says it has")]
    NotInShard { tensor: String },
    #[error(
        "has no safetensors files, only pickled weights ({file}), which may run code and are never read; use a safetensors version of the model"
    )]
    PickleOnly { file: String },
    #[error("has neither model.safetensors nor model.safetensors.index.json")]
    NoWeights,
}

impl SafetensorsFault {
    /// The fault with its file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> SafetensorsError {
        SafetensorsError { path: path.to_owned(), fault: Box::new(self) }
    }
}
