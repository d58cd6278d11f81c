//! The projections of a model that adapters can change, in the order in which its graph applies them.

use std::ops::Range;

use cuelight_shaders::lora::Target;

use crate::engine::AdapterLimits;

/// The tensor of the token embedding. As a projection it has a column for each token.
pub const TOKEN_EMBEDDING: &str = "token_embd.weight";

/// The tensor of the output head, also of a model whose head is the token embedding.
pub const OUTPUT_HEAD: &str = "output.weight";

/// A projection: a weight, or some rows of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Projection {
    /// The tensor, named as in GGUF files: `blk.0.attn_q.weight`.
    pub tensor: String,
    /// The expert whose matrix it is, of a tensor with a matrix for each expert.
    pub expert: Option<usize>,
    /// Its rows, which are the projection's outputs; those of the matrix of an expert.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: usize,
    /// What multiplies its outputs after the changes were added, which the changes must have already.
    pub factor: f32,
}

impl Projection {
    /// Outputs and columns.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.columns]
    }
}

/// The projections of a graph under construction. Without limits no adapter can change them, and the graph has no ops for it.
#[derive(Debug, Default)]
pub struct Projections {
    limits: Option<AdapterLimits>,
    list: Vec<Projection>,
}

impl Projections {
    /// None yet. `limits` are those of a model that is to have adapters.
    #[must_use]
    pub fn new(limits: Option<AdapterLimits>) -> Self {
        Projections { limits, list: Vec::new() }
    }

    /// The target of changes of the next projection; `None` without adapters.
    pub fn add(&mut self, projection: Projection) -> Option<Target> {
        let [outputs, columns] = projection.shape();
        let target = Target { index: self.list.len(), count: 1, outputs, columns, max_rank: self.limits?.max_rank };
        self.list.push(projection);
        Some(target)
    }

    /// The same for the token embedding and the output head; `None` where adapters must not change them.
    pub fn add_of_vocabulary(&mut self, projection: Projection) -> Option<Target> {
        if self.limits?.vocabulary { self.add(projection) } else { None }
    }

    /// The same for a matrix of all experts of a layer, each with a factor; `None` where adapters must not change experts.
    pub fn add_of_experts(
        &mut self,
        tensor: &str,
        [outputs, columns]: [usize; 2],
        factors: impl ExactSizeIterator<Item = f32>,
    ) -> Option<Target> {
        let max_rank = self.limits.filter(|limits| limits.experts)?.max_rank;
        let target = Target { index: self.list.len(), count: factors.len(), outputs, columns, max_rank };
        self.list.extend(factors.enumerate().map(|(expert, factor)| Projection {
            tensor: tensor.to_owned(),
            expert: Some(expert),
            rows: 0..outputs,
            columns,
            factor,
        }));
        Some(target)
    }

    /// All projections, in order.
    #[must_use]
    pub fn into_list(self) -> Vec<Projection> {
        self.list
    }
}
