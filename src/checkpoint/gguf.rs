//! A GGUF file as a checkpoint.

use cuelight_shaders::weight::Weight;

use super::Checkpoint;
use crate::cancel::LoadCancel;
use crate::format::gguf::{Gguf, GgufError, TensorInfo};
use crate::format::sampling;
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

impl Checkpoint for Gguf {
    fn files(&self) -> &ModelFiles {
        self.files()
    }

    fn file_format(&self) -> &'static str {
        "gguf"
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor(name)
    }

    fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        self.weight(name)
    }

    fn integers_of(&self, name: &str) -> Option<Vec<i64>> {
        self.integers_of(name)
    }

    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::build(self, cancel)
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        Tokenizer::memory_bytes(self)
    }

    fn sampling(&self) -> RecommendedSampling {
        sampling::of_gguf(self)
    }

    fn release_header(&self) {
        self.release_header();
    }
}
