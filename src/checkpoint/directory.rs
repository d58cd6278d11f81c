//! A Hugging Face directory as a checkpoint.

use cuelight_shaders::weight::Weight;

use super::Checkpoint;
use crate::cancel::LoadCancel;
use crate::format::gguf::write::GgufBuilder;
use crate::format::gguf::{GgufError, TensorInfo};
use crate::format::hugging_face::Directory;
use crate::format::sampling;
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

impl Checkpoint for Directory {
    fn files(&self) -> &ModelFiles {
        self.files()
    }

    fn file_format(&self) -> &'static str {
        "safetensors"
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
        cancel.check()?;
        self.text().tokenizer()
    }

    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError> {
        self.text().memory_bytes()
    }

    fn add_text_keys(&self, file: GgufBuilder) -> Result<GgufBuilder, TokenizerError> {
        let rows = self.tensor("token_embd.weight").map_or(0, TensorInfo::n_rows);
        let file = sampling::add_keys(&self.sampling().stated, file);
        self.text().add_keys(usize::try_from(rows).unwrap_or(0), file)
    }

    fn sampling(&self) -> RecommendedSampling {
        self.sampling().clone()
    }

    /// What the directory states is kept in memory in full.
    fn release_header(&self) {}
}
