//! Models with random weights: the exact shapes of a published model in the formats that llama.cpp gives its tensors. They are
//! generated when the real weights are not available.
//!
//! The output of such a model is meaningless, but it needs the same time and memory as the real model. It is a complete GGUF
//! file with metadata and a tokenizer, in memory ([`Synthetic::outline`]) or on disk ([`Synthetic::write`]).
//!
//! # Layout, in reading order
//!
//! - [`shape`], [`series`] and [`models`]: the sizes of a model, what a series has in common, and the table of all models
//! - [`recorder`] and [`tensors`]: the tensors of a shape, which its graph asks for
//! - [`metadata`] and [`vocabulary`]: the metadata of the file
//! - [`generate`]: the bytes of the file

pub mod generate;
mod metadata;
pub mod models;
mod recorder;
mod series;
pub mod shape;
pub mod tensors;
mod vocabulary;

use std::fmt;
use std::str::FromStr;

use cuelight_shaders::quant::Format;
use models::MODELS;
use shape::Shape;
use tensors::{Content, Tensor};

use crate::quantization_recipe::{Matrix, ModelFacts, QUANTIZATION_RECIPES, QuantizationRecipe, fitting};

/// A synthetic model: its shapes and its formats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthetic {
    /// The shapes.
    pub shape: &'static Shape,
    /// The formats of the tensors.
    pub recipe: &'static QuantizationRecipe,
}

impl Synthetic {
    /// The format of a tensor. Vectors and routers are always float32.
    #[must_use]
    pub fn format(&self, tensor: &Tensor) -> Format {
        let Content::Weights(role) = tensor.content else { return Format::F32 };
        let matrix = Matrix { role, layer: tensor.layer, is_routed: tensor.experts > 1, columns: tensor.columns };
        let model = ModelFacts {
            n_layers: self.shape.n_layers,
            queries_per_key: self.shape.n_heads / self.shape.n_kv_heads,
            has_experts: self.shape.experts.is_some(),
            has_importance: false,
        };
        fitting(self.recipe.format(&matrix, &model), tensor.columns)
    }
}

/// Why a text is not the name of a synthetic model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticError {
    /// The model or the format is missing.
    #[error("{text:?} is not a model and a format with a colon between, like llama-8b:q4_k_m")]
    NotAPair {
        /// The text.
        text: String,
    },
    /// The model is not in the table.
    #[error("the shapes of {name:?} are unknown; known models: {}", known(MODELS.iter().map(|shape| shape.name)))]
    UnknownModel {
        /// The name.
        name: String,
    },
    /// The format is not in the table.
    #[error("the format {name:?} is unknown; known formats: {}", known(QUANTIZATION_RECIPES.iter().map(|recipe| recipe.name)))]
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

    /// Parses `llama-8b:q4_k_m`; upper and lower case are equal.
    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let (name, format) = text.split_once(':').ok_or_else(|| SyntheticError::NotAPair { text: text.to_owned() })?;
        let shape = MODELS.iter().find(|shape| shape.name.eq_ignore_ascii_case(name));
        let recipe = QuantizationRecipe::named(format);
        Ok(Synthetic {
            shape: shape.ok_or_else(|| SyntheticError::UnknownModel { name: name.to_owned() })?,
            recipe: recipe.ok_or_else(|| SyntheticError::UnknownFormat { name: format.to_owned() })?,
        })
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape.name, self.recipe.name)
    }
}

#[cfg(test)]
mod tests;
