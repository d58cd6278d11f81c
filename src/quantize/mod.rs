//! Quantization of a model: reads a GGUF file, writes another whose matrices have fewer bits.
//!
//! - [`options`]: what the user chose
//! - [`importance`]: the importance of each column of each matrix, measured on a text
//! - [`plan`]: the format of each tensor, before anything is written
//! - [`write`](mod@write): the new file, tensor by tensor
//! - [`w8a8`]: 8-bit weights and activations, as another Hugging Face directory
//! - `partial`: the file until it is complete; an interrupted quantization continues with it
//!
//! The formats follow llama.cpp's mixtures (see [`quantization_recipe`](crate::quantization_recipe)). Memory is bounded by the
//! largest tensor.

pub mod error;
pub mod importance;
pub mod options;
mod partial;
pub mod plan;
pub mod w8a8;
pub mod write;

pub use error::QuantizeError;
pub use importance::ImportanceMatrix;
pub use options::{Override, QuantizeOptions, Target};
pub use plan::{PlannedTensor, QuantizePlan};
pub use write::WriteProgress;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
