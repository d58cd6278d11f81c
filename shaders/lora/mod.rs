//! Low-rank adapters: small changes of a model's projections, chosen for each sequence of a batch.
//!
//! - [`adapter`]: the matrices of one adapter, and the adapter of a sequence
//! - [`LoraDelta`]: the op that adds the change to the output of a projection
//! - `kernel`: its two products
//!
//! The op is not in the registry of ops, because it has no shaders yet: a model with adapters runs on the CPU.
//!
//! Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".

pub mod adapter;
mod kernel;
mod op;
#[cfg(test)]
mod tests;

pub use adapter::{Adapter, AdapterUse, LowRank};

/// `y'[r] = y[r] + scale B (A x[r])` for the rows of sequences whose adapter changes this projection, and `y[r]` for the
/// others, bit for bit.
///
/// - x: [rows, columns] f32, the input of the projection
/// - y, y': [rows, outputs] f32, the output of the projection without and with the change
/// - A: [rank, columns] f32, B: [outputs, rank] f32, scale: those of the row's adapter ([`AdapterUse`])
/// - Every sum of a row is formed in one fixed order: one running sum for each lane in A x, and by ascending rank in
///   B (A x). Rows are grouped by adapter, which only determines what is computed together
/// - Cost: A and B once for each adapter of the step
#[derive(Debug, Clone)]
pub struct LoraDelta {
    /// The index of the projection in an adapter.
    target: usize,
    columns: usize,
    outputs: usize,
    /// The largest rank of an adapter.
    max_rank: usize,
}

impl LoraDelta {
    /// The change of projection number `target` of [outputs, columns], by adapters of at most `max_rank`.
    #[must_use]
    pub fn new(target: usize, [outputs, columns]: [usize; 2], max_rank: usize) -> Self {
        LoraDelta { target, columns, outputs, max_rank }
    }
}
