//! The largest inputs of each matrix, over the rows of a text.
//!
//! An [`InputMaxima`] observes an engine on the CPU ([`LoadOptions::observer`](crate::load::LoadOptions::observer)) while it
//! computes the text, as [`ImportanceSums`](crate::importance::ImportanceSums) does.

use std::collections::HashMap;

use cuelight_shaders::op::{InputObserver, MatrixInput};

/// The largest magnitude of each column of the inputs of matrices of layers, by the names of their tensors. The matrices of a
/// tensor with several are not distinguished.
#[derive(Debug, Clone, Default)]
pub struct InputMaxima {
    tensors: HashMap<String, Vec<f32>>,
}

impl InputObserver for InputMaxima {
    fn observe(&mut self, MatrixInput { tensor, columns, rows, .. }: MatrixInput<'_>) {
        if !tensor.starts_with("blk.") {
            return;
        }
        if !self.tensors.contains_key(tensor) {
            self.tensors.insert(tensor.to_owned(), vec![0.0; columns]);
        }
        let Some(maxima) = self.tensors.get_mut(tensor) else { return };
        for row in rows.chunks_exact(columns) {
            maxima.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(x.abs()));
        }
    }
}

impl InputMaxima {
    /// The maxima of a tensor; `None` if it multiplied nothing.
    #[must_use]
    pub fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.tensors.get(tensor).map(Vec::as_slice)
    }
}
