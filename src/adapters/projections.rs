//! The projections of a model that adapters can change, in the order in which its graph applies them.

use std::ops::Range;

use cuelight_shaders::lora::LoraDelta;

/// A projection: a weight of a layer, or some rows of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// The tensor, named as in GGUF files: `blk.0.attn_q.weight`.
    pub tensor: String,
    /// Its rows, which are the projection's outputs.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: usize,
}

impl Projection {
    /// Outputs and columns.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.columns]
    }
}

/// The projections of a graph under construction. Without a rank no adapter can change them, and the graph has no ops for it.
#[derive(Debug, Default)]
pub struct Projections {
    max_rank: Option<usize>,
    list: Vec<Projection>,
}

impl Projections {
    /// None yet. `max_rank` is the largest rank of an adapter, for a model that is to have adapters.
    #[must_use]
    pub fn new(max_rank: Option<usize>) -> Self {
        Projections { max_rank, list: Vec::new() }
    }

    /// The op that adds the changes of the next projection; `None` without adapters.
    pub fn add(&mut self, projection: Projection) -> Option<LoraDelta> {
        let op = LoraDelta::new(self.list.len(), projection.shape(), self.max_rank?);
        self.list.push(projection);
        Some(op)
    }

    /// All projections, in order.
    #[must_use]
    pub fn into_list(self) -> Vec<Projection> {
        self.list
    }
}
