//! A checkpoint with the tensors of its quantized copy. Everything else, tensors that the copy does not have included, is read from
//! the original.

use std::path::Path;

use cuelight_shaders::weight::Weight;

use super::{Checkpoint, Metadata, OpenError, TensorInfo};
use crate::cancel::LoadCancel;
use crate::format::gguf::{Gguf, GgufError, Value};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

/// Opens a checkpoint with the tensors of `copy`, a GGUF file that holds them with fewer bits.
///
/// # Errors
/// [`OpenError`] naming the file and what is wrong with it.
pub fn open(path: &Path, copy: &Path) -> Result<Box<dyn Checkpoint>, OpenError> {
    with_copy(super::open(path)?, copy)
}

/// As [`open`], of a checkpoint that is open.
///
/// # Errors
/// As [`open`].
pub fn with_copy(original: Box<dyn Checkpoint>, copy: &Path) -> Result<Box<dyn Checkpoint>, OpenError> {
    Ok(Box::new(Quantized::new(original, Gguf::open(copy)?)))
}

/// A checkpoint and its quantized copy.
struct Quantized {
    original: Box<dyn Checkpoint>,
    copy: Gguf,
    /// Those of the original, in the form of the copy where it has them.
    tensors: Vec<TensorInfo>,
    files: ModelFiles,
}

impl Quantized {
    fn new(original: Box<dyn Checkpoint>, copy: Gguf) -> Self {
        let files = original.files().with(Checkpoint::files(&copy));
        let in_copy = |tensor: &TensorInfo| Checkpoint::tensor(&copy, &tensor.name).unwrap_or(tensor).clone();
        let tensors = original.tensors().iter().map(in_copy).collect();
        Quantized { original, copy, tensors, files }
    }
}

impl Metadata for Quantized {
    fn path(&self) -> &Path {
        self.original.path()
    }

    fn metadata(&self) -> &[(String, Value)] {
        self.original.metadata()
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.original.value(key)
    }
}

impl Checkpoint for Quantized {
    fn files(&self) -> &ModelFiles {
        &self.files
    }

    fn file_format(&self) -> &'static str {
        self.copy.file_format()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        Checkpoint::tensor(&self.copy, name).or_else(|| self.original.tensor(name))
    }

    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        match Checkpoint::tensor(&self.copy, name) {
            Some(_) => Checkpoint::weight(&self.copy, name),
            None => self.original.weight(name),
        }
    }

    fn integers_of(&self, name: &str) -> Option<Vec<i64>> {
        self.original.integers_of(name)
    }

    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        self.original.tokenizer(cancel)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        self.original.tokenizer_bytes()
    }

    fn sampling(&self) -> RecommendedSampling {
        self.original.sampling()
    }

    fn release_header(&self) {
        self.original.release_header();
    }
}
