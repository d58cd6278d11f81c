//! Low-rank adapters in files: pairs of matrices and their scales, not yet matched with a model.
//!
//! - [`error`]: why an adapter cannot be loaded
//! - `peft`: directories as the library PEFT saves them; `peft_config`: their `adapter_config.json`
//! - `gguf`: GGUF files

pub mod error;
mod gguf;
mod peft;
mod peft_config;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use cuelight_shaders::weight::Weight;

pub use error::{AdapterError, AdapterFault};

/// An open adapter.
#[derive(Debug)]
pub struct LoraFile {
    /// The file, or the directory.
    pub path: PathBuf,
    /// The architecture of its model, where the file has it.
    pub architecture: Option<String>,
    /// Its matrices. At least one pair.
    pub pairs: Vec<LoraPair>,
}

/// The change of one weight: `scale B A`.
#[derive(Debug)]
pub struct LoraPair {
    /// The weight.
    pub weight: WeightName,
    /// [rank, columns]
    pub a: Weight,
    /// [outputs, rank]
    pub b: Weight,
    /// The factor on the product.
    pub scale: f32,
}

/// The name of a weight that an adapter changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightName {
    /// As in GGUF files: `blk.0.attn_q.weight`. The matrices are in the order of such files too.
    Gguf(String),
    /// As in directories: `model.layers.0.self_attn.q_proj.weight`.
    HuggingFace(String),
}

impl LoraFile {
    /// Opens a GGUF adapter or a PEFT directory. Reads headers only.
    ///
    /// # Errors
    /// [`AdapterError`] naming the file and what is wrong with it or not supported.
    pub fn open(path: &Path) -> Result<Self, AdapterError> {
        let file = if path.is_dir() { peft::open(path)? } else { gguf::open(path)? };
        if file.pairs.is_empty() { Err(AdapterFault::Empty.in_file(path)) } else { Ok(file) }
    }

    /// The largest rank of its matrices.
    #[must_use]
    pub fn max_rank(&self) -> usize {
        self.pairs.iter().map(|pair| pair.a.rows).max().unwrap_or(0)
    }
}
