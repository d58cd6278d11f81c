//! DiffusionGemma (text): the layers of Gemma 4 with experts. It generates blocks of tokens: the rows of a block see each other,
//! and their input has the embeddings that the step before expected. Rows of the prompt and of finished blocks are causal, and each
//! layer has another factor for them.
//!
//! Source: Google 2026, "DiffusionGemma", its class in transformers, and llama.cpp's pull request 24427.

use super::family::{Family, Generation};
use super::gemma4;

pub(super) const FAMILY: Family = Family {
    architecture: "diffusion-gemma",
    models: "DiffusionGemma (text)",
    generation: Generation::Blocks,
    ..gemma4::FAMILY
};
