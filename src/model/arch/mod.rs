//! The model families, one declarative file each.
//!
//! A family is a [`Family`]: data that says how layers are built. Sizes come from the file's metadata. A new mathematical idea
//! is a new mixer or feed-forward and a variant in `family.rs`, never a test for a family's name.

mod deepseek2;
mod family;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod llama;
mod llama4;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;

pub use family::{
    AttentionScale, AttentionSpec, EmbeddingScale, ExpertPlacement, Family, Mixer, Norms, QkNorm, Rotation,
    RoutingSpec, Values, Windows, YarnRamp,
};

use super::error::ModelError;
use crate::format::gguf::Gguf;

/// All families.
pub const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &qwen2moe::FAMILY,
    &qwen3moe::FAMILY,
    &glm4moe::FAMILY,
    &gpt_oss::FAMILY,
    &deepseek2::FAMILY,
    &llama4::FAMILY,
    &gemma4::FAMILY,
];

/// The names of the supported architectures.
#[must_use]
pub fn known() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

/// The family of a file.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] when no family has the file's architecture, [`ModelError::Gguf`] when the file lacks the
/// key `general.architecture`.
pub fn of(gguf: &Gguf) -> Result<&'static Family, ModelError> {
    let found = gguf.str("general.architecture")?;
    FAMILIES.iter().copied().find(|family| family.architecture == found).ok_or_else(|| {
        let file = gguf.path().display().to_string();
        ModelError::UnknownArchitecture { file, found: found.to_owned(), known: known().join(", ") }
    })
}
