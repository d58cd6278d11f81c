//! 8-bit integer weights and activations (W8A8) of a Hugging Face directory: reads an unquantized one, writes another in the form
//! `int-quantized` of compressed-tensors.
//!
//! A matrix gets signed bytes and a scale for each output. Activations are rounded at run time, by token, by the program that runs
//! the model. Memory is bounded by the largest tensor.
//!
//! - [`options`]: what the user chose
//! - [`maxima`]: the largest inputs of each matrix, measured on a text
//! - [`plan`]: which tensors are quantized, before anything is written
//! - [`smoothing`]: the norms and matrices between which factors move; `factors`: these factors (SmoothQuant, Xiao et al. 2022)
//! - `rows`: the values of a stored matrix, and their codes
//! - `config`: what `config.json` states
//! - [`write`](mod@write): the new directory; `folder`: its place until it is complete; `companions`: the files without weights

mod companions;
mod config;
pub mod error;
mod factors;
mod folder;
pub mod maxima;
pub mod options;
pub mod plan;
mod rows;
pub mod smoothing;
pub mod write;

pub use error::W8a8Error;
pub use maxima::InputMaxima;
pub use options::{Clip, Strength, W8a8Options};
pub use plan::{PlannedTensor, W8a8Plan, open};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
