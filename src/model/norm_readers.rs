//! The norms whose output only matrices read. Factors can move from the weight of such a norm to the columns of those matrices
//! without a change of the model's results.

use cuelight_shaders::op::Op;

use super::ModelGraph;
use super::builder::RowNorm;

/// A norm over whole rows and what reads its output.
#[derive(Debug)]
pub struct NormReaders<'a> {
    /// The norm.
    pub norm: &'a RowNorm,
    /// The tensors of the matrices that multiply its output, each once, if nothing else reads it. None if no matrix does.
    pub matrices: Result<Vec<String>, NotMovable>,
}

/// Why no factor can move from a norm to matrices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMovable {
    /// Its output is also a result of the graph.
    #[error("its output is also a result of the model")]
    IsResult,
    /// Something else than matrices reads its output.
    #[error("the step {op:?} reads its output too, which is no product with a matrix")]
    OtherReader {
        /// The op.
        op: &'static str,
    },
    /// A matrix multiplies other values too.
    #[error("the matrix {tensor:?} multiplies other values too")]
    SharedMatrix {
        /// Its tensor.
        tensor: String,
    },
    /// Several norms have the same weight.
    #[error("its weight is that of another norm too")]
    SharedWeight,
}

impl ModelGraph {
    /// The norms over whole rows that have a weight, with what reads them.
    #[must_use]
    pub fn norm_readers(&self) -> Vec<NormReaders<'_>> {
        self.norms.iter().map(|norm| NormReaders { norm, matrices: self.matrices_after(norm) }).collect()
    }

    fn matrices_after(&self, norm: &RowNorm) -> Result<Vec<String>, NotMovable> {
        if self.norms.iter().filter(|other| other.weight == norm.weight).count() > 1 {
            return Err(NotMovable::SharedWeight);
        }
        let readers = self.graph.readers(norm.output).ok_or(NotMovable::IsResult)?;
        let mut tensors = Vec::new();
        if readers.iter().all(|(op, input)| op.multiplies(*input).is_none()) {
            return Ok(tensors);
        }
        for (op, input) in &readers {
            let weights = op.multiplies(*input).ok_or(NotMovable::OtherReader { op: op.name() })?;
            tensors.extend(weights.into_iter().map(|weight| weight.tensor().to_owned()));
        }
        tensors.sort();
        tensors.dedup();
        let is_shared = |tensor: &&String| self.ops_with(tensor) > readers_with(&readers, tensor);
        match tensors.iter().find(is_shared) {
            Some(tensor) => Err(NotMovable::SharedMatrix { tensor: tensor.clone() }),
            None => Ok(tensors),
        }
    }

    /// The number of ops that have a matrix of a tensor.
    fn ops_with(&self, tensor: &str) -> usize {
        self.graph.ops().into_iter().filter(|op| has(*op, tensor)).count()
    }
}

/// The number of these readers that have a matrix of a tensor.
fn readers_with(readers: &[(&dyn Op, usize)], tensor: &str) -> usize {
    readers.iter().filter(|(op, _)| has(*op, tensor)).count()
}

fn has(op: &dyn Op, tensor: &str) -> bool {
    op.weights().iter().any(|weight| weight.tensor() == tensor)
}
