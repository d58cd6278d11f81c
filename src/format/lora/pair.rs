//! What an adapter consists of.

use std::path::PathBuf;

use cuelight_shaders::weight::Weight;

use crate::format::hugging_face::layer_of;

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
    /// [rank, columns], or where it is transposed [columns, rank]
    pub a: Weight,
    /// Whether A is transposed, as for token embeddings in GGUF files.
    pub is_transposed: bool,
    /// [outputs, rank]
    pub b: Weight,
    /// The number of experts whose matrices follow each other in both: [experts, rank, columns] and [experts, outputs, rank].
    pub experts: Option<usize>,
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
        self.pairs.iter().map(LoraPair::rank).max().unwrap_or(0)
    }

    /// Whether it changes weights outside of layers: the token embedding or the output head.
    #[must_use]
    pub fn changes_vocabulary(&self) -> bool {
        self.pairs.iter().any(|pair| !pair.weight.is_of_layer())
    }

    /// Whether it changes routed experts.
    #[must_use]
    pub fn changes_experts(&self) -> bool {
        self.pairs.iter().any(|pair| pair.weight.is_of_experts())
    }
}

impl LoraPair {
    /// The rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        let rows = if self.is_transposed { self.a.columns } else { self.a.rows };
        rows / self.experts.unwrap_or(1).max(1)
    }

    /// The columns of the weight.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.is_transposed { self.a.rows } else { self.a.columns }
    }
}

impl WeightName {
    /// Whether it is a weight of a layer.
    #[must_use]
    pub fn is_of_layer(&self) -> bool {
        match self {
            WeightName::Gguf(name) => name.starts_with("blk."),
            WeightName::HuggingFace(name) => layer_of(name).is_some(),
        }
    }

    /// Whether it is a weight of routed experts.
    #[must_use]
    pub fn is_of_experts(&self) -> bool {
        match self {
            WeightName::Gguf(name) => name.ends_with("_exps.weight"),
            WeightName::HuggingFace(name) => name.contains(".experts."),
        }
    }
}
