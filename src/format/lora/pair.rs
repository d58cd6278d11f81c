//! What an adapter consists of.

use std::path::PathBuf;

use cuelight_shaders::weight::Weight;

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
    /// The largest rank of its matrices.
    #[must_use]
    pub fn max_rank(&self) -> usize {
        self.pairs.iter().map(|pair| pair.a.rows).max().unwrap_or(0)
    }
}
