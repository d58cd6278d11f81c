//! What a model is loaded from: its metadata, tensors, tokenizer and chat template.
//!
//! A GGUF file and a Hugging Face directory are checkpoints, and nothing that reads one knows which it was. Keys and tensors
//! have the names that GGUF files give them. The chat template is the value of the key `tokenizer.chat_template`.

mod directory;
pub mod drafter;
mod gguf;
mod joined_latent;
mod open;
pub mod prediction;
pub mod quantized;

use cuelight_shaders::weight::Weight;

use crate::cancel::LoadCancel;
use crate::format::gguf::GgufError;
use crate::format::gguf::write::GgufBuilder;
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::mapped_file::ModelFiles;
use crate::sample::RecommendedSampling;

pub use crate::format::gguf::{Metadata, TensorInfo};
pub use open::{OpenError, open};

/// What a model is loaded from. Opening it reads headers only.
pub trait Checkpoint: Metadata + Send + Sync {
    /// The mapped files; none for a model in memory.
    fn files(&self) -> &ModelFiles;

    /// The file format that holds the weights, "gguf" or "safetensors".
    fn file_format(&self) -> &'static str;

    /// All tensors.
    fn tensors(&self) -> &[TensorInfo];

    /// A tensor's entry in the table.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// A tensor as a matrix. The innermost dimension gives the columns, all others together the rows. Its bytes are mapped from
    /// the file, or made when they are first read.
    ///
    /// # Errors
    /// [`GgufError`] when there is no such tensor, or no kernel supports its format.
    fn weight(&self, name: &str) -> Result<Weight, GgufError>;

    /// [`Checkpoint::weight`] for a caller that needs a matrix of this shape, [rows, columns]. Only a checkpoint without stored
    /// shapes uses it.
    ///
    /// # Errors
    /// As [`Checkpoint::weight`].
    fn weight_of_shape(&self, name: &str, shape: [usize; 2]) -> Result<Weight, GgufError> {
        let _ = shape;
        self.weight(name)
    }

    /// The values of a tensor of integers; `None` if there is no such tensor. By default there is none.
    fn integers_of(&self, name: &str) -> Option<Vec<i64>> {
        let _ = name;
        None
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] when there is none, it is not supported, or the load is cancelled.
    fn tokenizer(&self, cancel: &LoadCancel) -> Result<Tokenizer, TokenizerError>;

    /// Bytes of memory that building the tokenizer takes.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] for a vocabulary beyond the limits.
    fn tokenizer_bytes(&self) -> Result<u64, TokenizerError>;

    /// Adds to a GGUF file the keys that are not in the metadata: those of the tokenizer and of the recommended sampling of a
    /// directory. By default there are none.
    ///
    /// # Errors
    /// [`TokenizerError`] when a GGUF file cannot hold the tokenizer.
    fn add_text_keys(&self, file: GgufBuilder) -> Result<GgufBuilder, TokenizerError> {
        Ok(file)
    }

    /// How its publisher recommends to sample from it. By default nothing is recommended.
    fn sampling(&self) -> RecommendedSampling {
        RecommendedSampling::default()
    }

    /// Releases the memory of the metadata. It is read from the file again if it is needed.
    fn release_header(&self);
}
