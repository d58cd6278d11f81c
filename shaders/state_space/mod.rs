//! The state space of Mamba 2: linear attention with a state that decays.
//!
//! - this file: the parameters
//! - `op`: the `impl Op`
//! - `cpu`: how threads share the work
//! - `factors`: what the CPU computes of each row beforehand
//! - `scan`: the CPU kernel
//! - `gpu`: the dispatch
//! - [`mod@reference`]: the formula in float64
//! - `cases`: the expected results

mod cases;
mod cpu;
mod factors;
mod gpu;
mod op;
pub mod reference;
mod scan;

use std::sync::Arc;

use crate::op::ShapeError;
use crate::recurrent::StatePart;

pub use cases::cases;

/// Columns of a head whose states are next to one another: those of one vector.
const BLOCK_COLUMNS: usize = crate::vector::LANES;

/// The sizes of a [`StateSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceShape {
    /// Heads of x.
    pub heads: usize,
    /// Values of a head of x.
    pub head_dim: usize,
    /// Groups of neighbouring heads with the same B and C.
    pub groups: usize,
    /// Values of B, and of C, for each group: the rows of a head's state.
    pub state_dim: usize,
}

impl SpaceShape {
    /// The width of the input with x, B and C.
    #[must_use]
    pub fn mixed_width(&self) -> usize {
        self.width() + 2 * self.groups * self.state_dim
    }

    /// The width of x, and of the output.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.heads * self.blocks() * self.block_len()
    }

    /// Blocks of columns of a head.
    fn blocks(&self) -> usize {
        self.head_dim.div_ceil(BLOCK_COLUMNS)
    }

    /// Values of the state of a block.
    fn block_len(&self) -> usize {
        self.state_dim * BLOCK_COLUMNS
    }

    /// Where B of a head starts in the input; C follows after B of all groups.
    fn start_of_b(&self, head: usize) -> usize {
        self.width() + head / (self.heads / self.groups) * self.state_dim
    }
}

/// The weights of a [`StateSpace`], each \[heads\].
#[derive(Debug, Clone)]
pub struct SpaceWeights {
    /// A, which is negative.
    pub a: Arc<[f32]>,
    /// D: how much of x is added to the output.
    pub d: Arc<[f32]>,
    /// The bias of dt.
    pub dt_bias: Arc<[f32]>,
}

/// The state space of Mamba 2. For each row of a sequence and each head with its group:
///
/// - `dt = softplus(dt + dt_bias)`
/// - `S = e^(dt A) S + B (dt x)^T`, `y = S^T C + D x`
///
/// Inputs: x, B and C after one another [rows, [`SpaceShape::mixed_width`]]; dt [rows, heads]. Output: y [rows, heads *
/// head_dim].
///
/// State: S of each head, [heads, head_dim / 16, state_dim, 16]. The columns are rounded up to whole blocks of 16.
///
/// Source: Dao & Gu 2024, "Transformers are SSMs".
#[derive(Debug, Clone)]
pub struct StateSpace {
    shape: SpaceShape,
    weights: SpaceWeights,
    part: StatePart,
}

impl StateSpace {
    /// A state space with the state at `part`.
    ///
    /// # Errors
    /// [`ShapeError`] when the sizes do not fit one another.
    pub fn new(shape: SpaceShape, weights: SpaceWeights, part: StatePart) -> Result<Self, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("state_space", what, found, expected);
        check("heads modulo groups", shape.heads % shape.groups.max(1), 0)?;
        // The kernels sum the rows of a state in pairs.
        check("rows of a state modulo 2", shape.state_dim % 2, 0)?;
        check("length of A", weights.a.len(), shape.heads)?;
        check("length of D", weights.d.len(), shape.heads)?;
        check("length of the bias of dt", weights.dt_bias.len(), shape.heads)?;
        check("values of state", part.len, shape.state_len())?;
        Ok(StateSpace { shape, weights, part })
    }
}
