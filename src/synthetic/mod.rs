//! Models of random weights: a published model's exact shapes, in the formats that llama.cpp would give its tensors, made
//! on the spot where the real weights are not at hand.
//!
//! What such a model computes means nothing, but it takes the time and the memory of the real one. It is a whole GGUF
//! file all the same, with metadata and a tokenizer, in memory ([`Synthetic::outline`]) or on a disk
//! ([`Synthetic::write`]).
//!
//! # Layout, in reading order
//!
//! - [`models`]: the table of shapes
//! - [`tensors`]: a shape's tensors
//! - [`mixture`]: which format each tensor gets
//! - [`metadata`] and [`vocabulary`]: the rest of the file
//! - [`making`]: the bytes

pub mod making;
mod metadata;
pub mod mixture;
pub mod models;
pub mod tensors;
mod vocabulary;

use std::fmt;
use std::str::FromStr;

use mixture::{MIXTURES, Mixture};
use models::{MODELS, Shape};

/// A model to be made: whose shapes, and in which format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthetic {
    /// The shapes.
    pub shape: &'static Shape,
    /// The formats.
    pub mixture: &'static Mixture,
}

/// Why a text does not name a model that can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticError {
    /// A part is missing.
    #[error("{text:?} is not a model and a format with a colon between, like llama-8b:q4_k_m")]
    NotAPair {
        /// The text.
        text: String,
    },
    /// Nobody knows the shapes.
    #[error("the shapes of {name:?} are not known; known are: {}", known(MODELS.iter().map(|shape| shape.name)))]
    UnknownModel {
        /// The name.
        name: String,
    },
    /// Nobody knows the format.
    #[error("the format {name:?} is not known; known are: {}", known(MIXTURES.iter().map(|mixture| mixture.name)))]
    UnknownFormat {
        /// The name.
        name: String,
    },
}

fn known<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

impl FromStr for Synthetic {
    type Err = SyntheticError;

    /// Reads `llama-8b:q4_k_m`, in either case.
    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let (name, format) = text.split_once(':').ok_or_else(|| SyntheticError::NotAPair { text: text.to_owned() })?;
        let shape = MODELS.iter().find(|shape| shape.name.eq_ignore_ascii_case(name));
        let mixture = MIXTURES.iter().find(|mixture| mixture.name.eq_ignore_ascii_case(format));
        Ok(Synthetic {
            shape: shape.ok_or_else(|| SyntheticError::UnknownModel { name: name.to_owned() })?,
            mixture: mixture.ok_or_else(|| SyntheticError::UnknownFormat { name: format.to_owned() })?,
        })
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape.name, self.mixture.name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
