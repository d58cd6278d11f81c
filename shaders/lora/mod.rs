//! Low-rank adapters: small changes of a model's projections, chosen for each sequence of a batch.
//!
//! - [`adapter`]: the matrices of one adapter, and the adapter of a sequence
//! - [`target`]: a projection that adapters change, and its changes on a device
//! - [`LoraDelta`]: the op that adds the changes to the outputs of projections
//! - `division`: the rows of a step by adapter
//! - `kernel`: the two products of a change; `products`: those of all changes of a step
//! - `op`: the op on the CPU; `gpu`: its dispatches
//! - `cases`, `reference`: test cases, and the float64 reference
//!
//! Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".

pub mod adapter;
mod cases;
pub(crate) mod division;
mod gpu;
mod kernel;
mod op;
pub(crate) mod products;
mod reference;
pub mod target;
#[cfg(test)]
mod tests;

pub use adapter::{Adapter, AdapterUse, LowRank};
pub use cases::cases;
pub use target::{DeviceAdapters, Target};

/// `y'[r] = y[r] + scale B (A x[r])` for the rows of sequences whose adapter changes the projection, and `y[r]` for the
/// others, bit for bit. For one or several projections of the same x.
///
/// - Inputs: y of each projection, [rows, outputs] f32, its output without the change; then x, [rows, columns] f32. For an
///   embedding there is no x: it is 1 in the column of the row's token and 0 in all others
/// - Outputs: y' of each projection, [rows, outputs] f32
/// - A: [rank, columns] f32, B: [outputs, rank] f32, scale: those of the row's adapter ([`AdapterUse`])
/// - Every sum of a row is formed in one fixed order: one running sum for each lane in A x, and by ascending rank in
///   B (A x). Rows are grouped by adapter, which only determines what is computed together
/// - Cost: A and B once for each adapter of the step
#[derive(Debug, Clone)]
pub struct LoraDelta {
    targets: Vec<Target>,
    source: Source,
}

/// What the projections multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The last input.
    Values,
    /// The tokens of the rows: A x is a column of A.
    Tokens,
}

impl LoraDelta {
    /// The changes of projections of one input.
    #[must_use]
    pub fn new(targets: Vec<Target>) -> Self {
        LoraDelta { targets, source: Source::Values }
    }

    /// The changes of an embedding of tokens, whose columns are the vocabulary.
    #[must_use]
    pub fn of_tokens(target: Target) -> Self {
        LoraDelta { targets: vec![target], source: Source::Tokens }
    }

    /// The number of inputs.
    fn n_inputs(&self) -> usize {
        self.targets.len() + usize::from(self.source == Source::Values)
    }

    /// The largest rank of a change.
    fn max_rank(&self) -> usize {
        self.targets.iter().map(|target| target.max_rank).max().unwrap_or(0)
    }
}
