//! What the user chose for a quantization.

use std::fmt;
use std::str::FromStr;

use cuelight_shaders::quant::Format;
use regex::Regex;

use super::error::QuantizeError;
use super::importance::ImportanceMatrix;
use crate::quantization_recipe::{QUANTIZATION_RECIPES, QuantizationRecipe};

/// What the user chose.
#[derive(Debug, Default)]
pub struct QuantizeOptions {
    /// The recipe that gives the format of each tensor. `None` keeps the formats; those that GGUF files do not have become F32.
    pub target: Option<Target>,
    /// Other formats for some tensors; the first pattern that matches counts.
    pub overrides: Vec<Override>,
    /// The importance of columns.
    pub importance: Option<ImportanceMatrix>,
    /// Whether tensors that are quantized already may be quantized again.
    pub allow_requantize: bool,
    /// Whether the file gets the tokenizer and the recommended sampling, so that it can be used without the original.
    pub is_complete: bool,
    /// Threads that quantize.
    pub threads: usize,
}

/// A format for the tensors whose names match a pattern.
#[derive(Debug, Clone)]
pub struct Override {
    pattern: Regex,
    /// The format.
    pub format: Format,
}

impl Override {
    /// Whether the override is for a tensor.
    #[must_use]
    pub fn applies(&self, tensor: &str) -> bool {
        self.pattern.is_match(tensor)
    }

    /// The regular expression.
    #[must_use]
    pub fn pattern(&self) -> &str {
        self.pattern.as_str()
    }
}

impl FromStr for Override {
    type Err = QuantizeError;

    /// Parses `PATTERN=FORMAT`, such as `attn_v=q6_k`. The pattern is a regular expression that matches a part of the name.
    fn from_str(text: &str) -> Result<Self, QuantizeError> {
        let not_an_override = || QuantizeError::NotAnOverride { text: text.to_owned() };
        let (pattern, format) = text.rsplit_once('=').ok_or_else(not_an_override)?;
        let format = format.parse().map_err(|_| not_an_override())?;
        let pattern = Regex::new(pattern)
            .map_err(|source| QuantizeError::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })?;
        Ok(Override { pattern, format })
    }
}

/// A recipe that weights can be quantized to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target(&'static QuantizationRecipe);

impl Target {
    /// The recipe.
    #[must_use]
    pub fn recipe(self) -> &'static QuantizationRecipe {
        self.0
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl FromStr for Target {
    type Err = QuantizeError;

    /// Finds a recipe by its name; the error lists the names of all recipes that weights can be quantized to.
    fn from_str(name: &str) -> Result<Self, QuantizeError> {
        QuantizationRecipe::named(name).filter(|recipe| recipe.is_writable()).map(Target).ok_or_else(|| {
            let writable = QUANTIZATION_RECIPES.iter().filter(|recipe| recipe.is_writable()).map(|recipe| recipe.name);
            QuantizeError::UnknownRecipe { name: name.to_owned(), known: writable.collect::<Vec<_>>().join(", ") }
        })
    }
}
