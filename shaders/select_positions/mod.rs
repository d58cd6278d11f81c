//! Selects the positions of its sequence to which a row attends: a *lightning indexer*.
//!
//! - this file: the parameters
//! - `op`: the `impl Op`
//! - `cpu`: the scores and the selection on the CPU
//! - `each_head`: the same where each head selects by itself
//! - `gpu`: the dispatches
//! - [`mod@reference`]: the formula in float64
//! - `cases`: the expected results
//!
//! Index keys are stored in the [KV cache](crate::kv), next to the keys and values of the layer.

mod cases;
mod cpu;
mod each_head;
mod gpu;
mod op;
pub mod reference;
#[cfg(test)]
mod tests;

use crate::kv::{KvShape, MAX_HEAD_DIM};
use crate::op::ShapeError;
use crate::selection::{Selection, Unit};

pub use cases::cases;

/// Stores the index keys of the rows, then selects for every row the `top_k` positions of its sequence up to its own with the
/// highest scores. Of equal scores the one at the lower position is higher. A row that sees at most `top_k` positions
/// selects all.
///
/// Positions may be selected in [pools](Selection): as many whole pools with the highest scores as have `top_k` positions
/// together, and all positions after the last whole pool. The score of a pool is that of its last position, whose key stands for
/// all ([`PoolRows`](crate::pool_rows::PoolRows)).
///
/// Or the pools themselves are selected, each of which has an [entry](crate::attention::Attention) to which rows attend: the `top_k`
/// whole pools with the highest scores, and nothing after the last whole pool. The output then has the numbers of the pools.
///
/// Or each head selects positions [by itself](Self::of_each_head), in pools up to that of the row: its last pools, and those others
/// with the highest scores. The score of a pool is the highest of its positions up to that of the row.
///
/// For a row at position `p` and `t <= p`: `s[t] = sum_h w[h] max(0, q[h]·k[t])`. A positive factor of all scores would change
/// no selection, so there is none. Where each head selects by itself: `s_h[t] = q[h]·k[t]`.
///
/// - Inputs: query [rows, n_heads * key_dim], key [rows, key_dim], and unless each head selects by itself weights w
///   [rows, n_heads]; output [rows, top_k + pool - 1], of pools themselves [rows, top_k], of each head
///   [rows, n_heads * top_k]: what is selected as numbers, ascending; 0 after the last one of a list.
/// - A score is one chain of additions over the heads, each of one chain over the dimensions. So a selection depends
///   neither on the chunks of the prompt nor on other sequences.
/// - Source: DeepSeek-AI 2025, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", 2.1. Its rotation of
///   queries and keys by a Hadamard matrix changes no product, so there is none. Pools: GLM-5 Team 2026, "GLM-5.3-Flash" and
///   its reference code; DeepSeek-AI 2026, "DeepSeek-V4", 2.3. Each head by itself: MiniMax 2026, "MiniMax-M3" and its reference
///   code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectPositions {
    layer: usize,
    n_heads: usize,
    key_dim: usize,
    selection: Selection,
}

/// Positions are numbers in float32, which has all integers up to this one.
const MAX_POSITIONS: usize = 1 << 24;

impl SelectPositions {
    /// Selects `top_k` positions with `n_heads` queries and the index keys of a layer of the cache, `key_dim` values each.
    ///
    /// # Errors
    /// [`ShapeError`] when a size is 0 or too large.
    pub fn new(layer: usize, [n_heads, key_dim, top_k]: [usize; 3]) -> Result<Self, ShapeError> {
        let sizes =
            [("n_heads", n_heads, usize::MAX), ("key_dim", key_dim, MAX_HEAD_DIM), ("top_k", top_k, MAX_POSITIONS)];
        for (what, found, most) in sizes {
            if found == 0 || found > most {
                let expected = format!("between 1 and {most}");
                return Err(ShapeError::Mismatch { op: "select_positions", what: what.into(), found, expected });
            }
        }
        Ok(SelectPositions { layer, n_heads, key_dim, selection: Selection::new(top_k, 1) })
    }

    /// The same in pools of this many positions.
    ///
    /// # Errors
    /// [`ShapeError`] when `top_k` positions are not whole pools.
    pub fn pooled(self, pool: usize) -> Result<Self, ShapeError> {
        let top_k = self.selection.most;
        let remainder = top_k.checked_rem(pool).unwrap_or(top_k);
        ShapeError::check("select_positions", format!("{top_k} positions modulo {pool}"), remainder, 0)?;
        Ok(SelectPositions { selection: Selection::new(top_k, pool), ..self })
    }

    /// The same of whole pools of this many positions, each of which has an entry.
    #[must_use]
    pub fn of_pools(self, pool: usize) -> Self {
        SelectPositions { selection: Selection::of_pools(self.selection.most, pool), ..self }
    }

    /// The same by each head, which selects its `top_k` positions in pools of this many, the `last` ones in any case.
    ///
    /// # Errors
    /// [`ShapeError`] when `top_k` positions are not whole pools, or the last pools are none or more than all.
    pub fn of_each_head(self, pool: usize, last: usize) -> Result<Self, ShapeError> {
        let pools = self.pooled(pool)?.selection.pools();
        if last == 0 || last > pools {
            let (what, expected) = ("number of last pools".to_owned(), format!("between 1 and {pools}"));
            return Err(ShapeError::Mismatch { op: "select_positions", what, found: last, expected });
        }
        Ok(SelectPositions { selection: Selection::with_last(pools, pool, last, self.n_heads), ..self })
    }

    /// How many positions or pools a row selects.
    #[must_use]
    pub fn selection(&self) -> Selection {
        self.selection
    }

    /// The pools that each head selects in any case; `None` if all heads select together.
    fn last_of_each_head(&self) -> Option<usize> {
        match self.selection.unit {
            Unit::LastPools(last) => Some(last),
            Unit::Positions | Unit::Pools => None,
        }
    }

    /// The shape of the index keys.
    fn index(&self) -> KvShape {
        KvShape::index(self.key_dim)
    }
}
