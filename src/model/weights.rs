//! Tensors by name, each checked against the shape that follows from the metadata.

use std::collections::HashSet;
use std::sync::Arc;

use cuelight_shaders::weight::Weight;

use super::error::ModelError;
use crate::format::gguf::Gguf;

/// The tensors of a file, and which of them the model has used so far.
pub struct Weights<'a> {
    gguf: &'a Gguf,
    used: HashSet<String>,
    bytes: u64,
}

impl<'a> Weights<'a> {
    /// The tensors of `gguf`; none is used yet.
    #[must_use]
    pub fn new(gguf: &'a Gguf) -> Self {
        Weights { gguf, used: HashSet::new(), bytes: 0 }
    }

    /// The file's name, for errors.
    #[must_use]
    pub fn file(&self) -> String {
        self.gguf.path().display().to_string()
    }

    /// Whether the file has the tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// The output dimension of a tensor, or `None` when the file has no such tensor.
    #[must_use]
    pub fn rows(&self, name: &str) -> Option<usize> {
        self.gguf.tensor(name).and_then(|tensor| usize::try_from(tensor.n_rows()).ok())
    }

    /// The biases [n_experts, outputs] of a layer's experts as one vector, or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`], except for a missing tensor.
    pub fn optional_expert_biases(
        &mut self,
        name: &str,
        n_experts: usize,
        outputs: usize,
    ) -> Result<Option<Arc<[f32]>>, ModelError> {
        Ok(self.optional_matrix(name, n_experts, outputs)?.map(|biases| biases.to_f32().into()))
    }

    /// The matrix `name`, [rows, columns]. Its bytes stay mapped from the file.
    ///
    /// # Errors
    /// [`ModelError`] when it is missing, in an unknown format, or of another shape.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Weight, ModelError> {
        let weight = self.gguf.weight(name)?;
        if [weight.rows, weight.columns] != [rows, columns] {
            return Err(ModelError::TensorShape {
                file: self.file(),
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

    /// [`Weights::matrix`], or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`], except for a missing tensor.
    pub fn optional_matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Option<Weight>, ModelError> {
        self.has(name).then(|| self.matrix(name, rows, columns)).transpose()
    }

    /// The vector `name`, `[len]`, as float32.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>, ModelError> {
        Ok(self.matrix(name, 1, len)?.to_f32().into())
    }

    /// [`Weights::vector`], or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// As [`Weights::matrix`], except for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Arc<[f32]>>, ModelError> {
        self.has(name).then(|| self.vector(name, len)).transpose()
    }

    /// Marks a tensor that the model does not need, if the file has it.
    pub fn ignore(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// Bytes of the tensors used so far, each once.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Refuses a file with unused tensors in its first `n_layers` layers: they belong to a variant that would be computed
    /// wrongly.
    ///
    /// # Errors
    /// [`ModelError::UnusedTensor`] with the first unused tensor.
    pub fn check_all_layer_tensors_used(&self, architecture: &str, n_layers: usize) -> Result<(), ModelError> {
        let layer = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        let is_unused = |name: &str| layer(name).is_some_and(|layer| layer < n_layers) && !self.used.contains(name);
        let unused = self.gguf.tensors().iter().find(|tensor| is_unused(&tensor.name));
        match unused {
            None => Ok(()),
            Some(tensor) => Err(ModelError::UnusedTensor {
                file: self.file(),
                tensor: tensor.name.to_string(),
                architecture: architecture.to_owned(),
            }),
        }
    }
}
