//! The selective scan of Mamba 1: a state for each channel, of which every value decays at its own rate.
//!
//! - this file: the parameters
//! - `op`: the `impl Op`
//! - `cpu`: how threads share the work
//! - `scan`: the CPU kernel
//! - `gpu`: the dispatch
//! - [`mod@reference`]: the formula in float64
//! - `cases`: the expected results

mod cases;
mod cpu;
mod gpu;
mod op;
pub mod reference;
mod scan;

use std::sync::Arc;

use crate::op::ShapeError;
use crate::recurrent::StatePart;

pub use cases::cases;

/// Channels whose states are next to one another: those of one vector.
const BLOCK_CHANNELS: usize = crate::vector::LANES;

/// The sizes of a [`SelectiveScan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanShape {
    /// Values of a row.
    pub channels: usize,
    /// Values of B and of C, and of the state of a channel.
    pub state_dim: usize,
}

impl ScanShape {
    /// Values of the state of one sequence.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.channels.div_ceil(BLOCK_CHANNELS) * self.block_len()
    }

    /// Values of the states of a block of channels.
    fn block_len(&self) -> usize {
        self.state_dim * BLOCK_CHANNELS
    }

    /// Where a value of a channel's state is stored.
    fn place(&self, channel: usize, index: usize) -> usize {
        channel / BLOCK_CHANNELS * self.block_len() + index * BLOCK_CHANNELS + channel % BLOCK_CHANNELS
    }
}

/// The selective scan of Mamba 1. For each row of a sequence, each channel c and each value n of its state:
///
/// - `dt = softplus(dt)`
/// - `S[c, n] = e^(dt[c] A[c, n]) S[c, n] + dt[c] x[c] B[n]`, `y[c] = sum_n C[n] S[c, n] + D[c] x[c]`
///
/// Inputs: x [rows, channels], dt [rows, channels], B [rows, state_dim], C [rows, state_dim]. Output: y [rows, channels].
///
/// State: S, [channels / 16, state_dim, 16]. The channels are rounded up to whole blocks of 16.
///
/// Source: Gu & Dao 2023, "Mamba".
#[derive(Debug, Clone)]
pub struct SelectiveScan {
    shape: ScanShape,
    /// A in the layout of the state.
    a: Arc<[f32]>,
    /// `[channels]`
    d: Arc<[f32]>,
    part: StatePart,
}

impl SelectiveScan {
    /// A scan with the state at `part`. `a` is [channels, state_dim] and negative, `d` is \[channels\].
    ///
    /// # Errors
    /// [`ShapeError`] when the sizes do not fit one another.
    pub fn new(shape: ScanShape, a: &[f32], d: Arc<[f32]>, part: StatePart) -> Result<Self, ShapeError> {
        let check = |what: &str, found, expected| ShapeError::check("selective_scan", what, found, expected);
        check("length of A", a.len(), shape.channels * shape.state_dim)?;
        check("length of D", d.len(), shape.channels)?;
        check("values of state", part.len, shape.state_len())?;
        let mut placed = vec![0.0; shape.state_len()];
        for (index, value) in a.iter().enumerate() {
            placed[shape.place(index / shape.state_dim, index % shape.state_dim)] = *value;
        }
        Ok(SelectiveScan { shape, a: placed.into(), d, part })
    }
}
