//! The faults of a GGUF file, each with a one-sentence message.

use std::path::{Path, PathBuf};

use cuelight_shaders::weight::WeightError;

use super::type_name::ggml_type_name;
use crate::mapped_file::Change;

/// A fault and the file that has it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", .path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// The fault; boxed to keep `Result`s small.
    #[source]
    pub fault: Box<GgufFault>,
}

/// What is wrong with a file, or with a key or tensor requested from it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum GgufFault {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("it changed while it was read ({0})")]
    Changed(Change),
    #[error("not a GGUF file: it does not start with \"GGUF\"")]
    NotGguf,
    #[error("GGUF version {0} is not supported: versions 2 and 3 are; convert the model again with current tools")]
    Version(u32),
    #[error("the file is big-endian; only little-endian GGUF files are supported")]
    BigEndian,
    #[error("truncated: {what} at byte {offset} needs {needed} bytes, but {available} are left")]
    Truncated { what: String, offset: usize, needed: u64, available: usize },
    #[error("states {count} {what}, more than its {available} remaining bytes can hold")]
    AbsurdCount { what: String, count: u64, available: usize },
    #[error("states {count} {what}; at most {most} are allowed")]
    TooMany { what: String, count: u64, most: u64 },
    #[error("its metadata and tensor table are longer than {most} bytes")]
    LongHeader { most: usize },
    #[error("{what} is {length} bytes long; at most {most} are allowed")]
    LongName { what: String, length: u64, most: u64 },
    #[error("{what} at byte {offset} is not valid UTF-8")]
    NotUtf8 { what: String, offset: usize },
    #[error("key {key:?} has the unknown value type {type_id}")]
    UnknownValueType { key: String, type_id: u32 },
    #[error("key {key:?} is an array of arrays, which is not supported")]
    NestedArray { key: String },
    #[error("key {key:?} holds {byte} where a boolean must be 0 or 1")]
    NotBool { key: String, byte: u8 },
    #[error("key {key:?} appears twice")]
    DuplicateKey { key: String },
    #[error("tensor {tensor:?} appears twice")]
    DuplicateTensor { tensor: String },
    #[error("key \"general.alignment\" must be a power of two, not {found}")]
    Alignment { found: String },
    #[error("tensor {tensor:?} has {n_dims} dimensions; at most 4 are allowed")]
    TooManyDimensions { tensor: String, n_dims: u32 },
    #[error("tensor {tensor:?} is larger than any memory")]
    HugeTensor { tensor: String },
    #[error("tensor {tensor:?} has rows of {columns} values, not a multiple of its format's block of {block}")]
    RaggedTensor { tensor: String, columns: u64, block: u64 },
    #[error("tensor {tensor:?} starts at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error(
        "tensor {tensor:?} lies outside the file: it ends at byte {end} of {file_bytes}; is the download complete?"
    )]
    TensorOutside { tensor: String, end: u64, file_bytes: usize },
    #[error(
        "is one of {count} shards, but is not named like name-00001-of-{count:05}.gguf, so the others cannot be found"
    )]
    ShardName { count: u32 },
    #[error("is named as shard {index} of {count}, but its keys \"split.no\" and \"split.count\" say {found}")]
    ShardPosition { index: usize, count: usize, found: String },
    #[error("the shards hold {found} tensors, but key \"split.tensors.count\" says {stated}")]
    ShardTensors { found: usize, stated: u64 },
    #[error("lacks the key {key:?} ({wanted})")]
    MissingKey { key: String, wanted: &'static str },
    #[error("key {key:?} is {found}, but must be {wanted}")]
    WrongType { key: String, found: String, wanted: &'static str },
    #[error("key {key:?} is {found}, which is out of range for {wanted}")]
    OutOfRange { key: String, found: String, wanted: &'static str },
    #[error("lacks the tensor {tensor:?}")]
    NoSuchTensor { tensor: String },
    #[error(
        "tensor {tensor:?} is stored in an older form of Q2_0 with a scale for 128 values, which is not supported; \
         convert the model again with current tools"
    )]
    OlderQ2 { tensor: String },
    #[error("tensor {tensor:?} has the unsupported format {}", ggml_type_name(*.ggml_type))]
    UnknownFormat { tensor: String, ggml_type: u32 },
    #[error(transparent)]
    Weight(WeightError),
}

impl GgufFault {
    /// The fault with its file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> GgufError {
        GgufError { path: path.to_owned(), fault: Box::new(self) }
    }
}
