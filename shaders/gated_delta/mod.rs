//! The gated delta rule: linear attention with a state that decays and is corrected.
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

/// Under the root of the norms of queries and keys.
const EPSILON: f32 = 1e-6;

/// The key head of a value head, where there are fewer key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Neighbouring value heads share a key head: `h / (value heads / key heads)`.
    Grouped,
    /// Value heads repeat the key heads: `h mod key heads`.
    Tiled,
}

/// How the input a, its bias and A become the decay `e^g`, where `x = a + dt_bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DecayForm {
    /// `g = A softplus(x)`, with a negative A.
    Softplus,
    /// `g = bound / (1 + e^-(A x))`, with a positive A: g is between the bound, which is negative, and 0.
    Bounded(f32),
}

/// The sizes of a [`GatedDelta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Values of a query or key head.
    pub key_dim: usize,
    /// Values of a value head.
    pub value_dim: usize,
    /// The key head of each value head.
    pub order: HeadOrder,
}

impl DeltaShape {
    /// The width of the input with queries, keys and values.
    #[must_use]
    pub fn mixed_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// The width of the queries, and of the keys.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// The width of the values.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.value_heads * self.blocks() * self.block_len()
    }

    /// The key head of a value head.
    #[must_use]
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// Blocks of columns of a head.
    fn blocks(&self) -> usize {
        self.value_dim.div_ceil(BLOCK_COLUMNS)
    }

    /// Values of the state of a block.
    fn block_len(&self) -> usize {
        self.key_dim * BLOCK_COLUMNS
    }
}

/// The gated delta rule. For each row of a sequence and each value head with its key head:
///
/// - `q = q rsqrt(sum q^2 + 1e-6) / sqrt(key_dim)`, `k = k rsqrt(sum k^2 + 1e-6)`, `beta = 1 / (1 + e^-b)`,
///   g by the [`DecayForm`]
/// - `S = e^g S`, `d = beta (v - S^T k)`, `S = S + k d^T`, `o = S^T q`
///
/// Inputs: q, k and v after one another [rows, [`DeltaShape::mixed_width`]]; a, [rows, value_heads], or
/// [rows, value_heads * key_dim] for a decay of each row of S; b [rows, value_heads]. Output: o [rows, value_heads *
/// value_dim].
///
/// State: S of each head, [value_heads, value_dim / 16, key_dim, 16]. The columns are rounded up to whole blocks of 16.
///
/// Source: Yang et al. 2024, "Gated Delta Networks"; with a decay of each row of S: Kimi Team 2025, "Kimi Linear"; with a bound:
/// the reference code of Ling 3 in transformers.
#[derive(Debug, Clone)]
pub struct GatedDelta {
    shape: DeltaShape,
    a: Arc<[f32]>,
    dt_bias: Arc<[f32]>,
    form: DecayForm,
    part: StatePart,
}

impl GatedDelta {
    /// A delta rule with the state at `part`, whose decays have the form [`DecayForm::Softplus`]. `a` is A, one per value head;
    /// `dt_bias` is as wide as the input a.
    ///
    /// # Errors
    /// [`ShapeError`] when the sizes do not fit one another.
    pub fn new(shape: DeltaShape, a: Arc<[f32]>, dt_bias: Arc<[f32]>, part: StatePart) -> Result<Self, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("gated_delta", what, found, expected);
        let heads = shape.value_heads;
        check("value heads modulo key heads", heads % shape.key_heads.max(1), 0)?;
        // The kernels sum keys in pairs.
        check("values of a key modulo 2", shape.key_dim % 2, 0)?;
        check("length of A", a.len(), heads)?;
        let channels = if dt_bias.len() == heads { 1 } else { shape.key_dim };
        check("length of the bias of dt", dt_bias.len(), heads * channels)?;
        check("values of state", part.len, shape.state_len())?;
        Ok(GatedDelta { shape, a, dt_bias, form: DecayForm::Softplus, part })
    }

    /// The same with decays of this form.
    #[must_use]
    pub fn with_decays(self, form: DecayForm) -> Self {
        GatedDelta { form, ..self }
    }

    /// Decays of each head: 1, or one for each row of its state.
    fn decays(&self) -> usize {
        self.dt_bias.len() / self.shape.value_heads.max(1)
    }
}
