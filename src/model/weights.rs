//! Tensors by name, each checked against the shape that the metadata makes due.

use std::collections::HashSet;
use std::sync::Arc;

use cuelight_shaders::weight::Weight;

use super::ModelError;
use crate::format::gguf::Gguf;

/// The tensors of a file, and which of them the model uses.
pub struct Weights<'a> {
    gguf: &'a Gguf,
    used: HashSet<String>,
    bytes: u64,
}

impl<'a> Weights<'a> {
    /// The tensors of `gguf`, none used yet.
    #[must_use]
    pub fn new(gguf: &'a Gguf) -> Self {
        Weights { gguf, used: HashSet::new(), bytes: 0 }
    }

    /// The matrix `name`, [rows, columns], on the mapped bytes.
    ///
    /// # Errors
    /// [`ModelError`] when it is missing, in an unknown format, or of another shape.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Weight, ModelError> {
        let weight = self.gguf.weight(name)?;
        if [weight.rows, weight.columns] != [rows, columns] {
            return Err(ModelError::TensorShape {
                file: self.gguf.path().display().to_string(),
                tensor: name.to_owned(),
                found: [weight.rows, weight.columns],
                expected: [rows, columns],
            });
        }
        if self.used.insert(name.to_owned()) {
            self.bytes += weight.bytes().len() as u64;
        }
        Ok(weight)
    }

    /// The same, or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`], but for a missing tensor.
    pub fn optional_matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Option<Weight>, ModelError> {
        self.gguf.tensor(name).is_some().then(|| self.matrix(name, rows, columns)).transpose()
    }

    /// The vector `name`, `[len]`, as float32.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>, ModelError> {
        Ok(self.matrix(name, 1, len)?.to_f32().into())
    }

    /// The same, or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`], but for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Arc<[f32]>>, ModelError> {
        self.gguf.tensor(name).is_some().then(|| self.vector(name, len)).transpose()
    }

    /// Bytes of the tensors used so far, each once.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Refuses a file with layer tensors that nothing used: they belong to a variant that would be computed wrongly.
    ///
    /// # Errors
    /// [`ModelError::UnusedTensor`] with the first of them.
    pub fn check_all_layer_tensors_used(&self, architecture: &str) -> Result<(), ModelError> {
        let unused = self.gguf.tensors().iter().find(|t| t.name.starts_with("blk.") && !self.used.contains(&*t.name));
        match unused {
            None => Ok(()),
            Some(tensor) => Err(ModelError::UnusedTensor {
                file: self.gguf.path().display().to_string(),
                tensor: tensor.name.to_string(),
                architecture: architecture.to_owned(),
            }),
        }
    }
}
