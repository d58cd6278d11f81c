//! Tensors by name, each checked against the shape that follows from the metadata.

use std::collections::HashSet;
use std::sync::Arc;

use cuelight_shaders::weight::Weight;

use super::error::ModelError;
use crate::checkpoint::Checkpoint;

/// The tensors of a file, and which of them the model has used so far.
pub struct Weights<'a> {
    checkpoint: &'a dyn Checkpoint,
    used: HashSet<String>,
    bytes: u64,
}

impl<'a> Weights<'a> {
    /// The tensors of `checkpoint`; none is used yet.
    #[must_use]
    pub fn new(checkpoint: &'a dyn Checkpoint) -> Self {
        Weights { checkpoint, used: HashSet::new(), bytes: 0 }
    }

    /// The file's name, for errors.
    #[must_use]
    pub fn file(&self) -> String {
        self.checkpoint.path().display().to_string()
    }

    /// Whether the file has the tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// The output dimension of a tensor, or `None` when the file has no such tensor.
    #[must_use]
    pub fn rows(&self, name: &str) -> Option<usize> {
        self.checkpoint.tensor(name).and_then(|tensor| usize::try_from(tensor.n_rows()).ok())
    }

    /// The input dimension of a tensor, or `None` when the file has no such tensor.
    #[must_use]
    pub fn columns(&self, name: &str) -> Option<usize> {
        self.checkpoint.tensor(name).and_then(|tensor| usize::try_from(tensor.n_columns()).ok())
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
        let weight = self.checkpoint.weight_of_shape(name, [rows, columns])?;
        if [weight.rows, weight.columns] != [rows, columns] || rows == 0 || columns == 0 {
            return Err(ModelError::TensorShape {
                file: self.file(),
                tensor: name.to_owned(),
                found: [weight.rows, weight.columns],
                expected: [rows, columns],
            });
        }
        if self.used.insert(name.to_owned()) {
            self.bytes += weight.byte_len() as u64;
        }
        Ok(weight)
    }

    /// The tensor `name`, which has more than two dimensions, as a matrix, [rows, columns].
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn flattened(&mut self, name: &str, rows: usize, columns: usize) -> Result<Weight, ModelError> {
        let stored = self.checkpoint.weight(name)?;
        let weight = stored.reshaped(rows, columns).map_err(|_| ModelError::TensorShape {
            file: self.file(),
            tensor: name.to_owned(),
            found: [stored.rows, stored.columns],
            expected: [rows, columns],
        })?;
        if self.used.insert(name.to_owned()) {
            self.bytes += weight.byte_len() as u64;
        }
        Ok(weight)
    }

    /// The matrix `name` with rows of `columns` values, of which single rows are read when they are needed. It does not count as
    /// memory.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn lookup_table(&mut self, name: &str, columns: usize) -> Result<Weight, ModelError> {
        let (rows, bytes) = (self.rows(name).unwrap_or(1), self.bytes);
        let table = self.matrix(name, rows, columns)?;
        self.bytes = bytes;
        Ok(table)
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

    /// The tensor of integers `name`, [rows, columns], all below `end`, as float32. `None` when the file has no such tensor.
    ///
    /// # Errors
    /// [`ModelError`] when it is of another type or shape, or a number is negative or too large.
    pub fn optional_numbers(
        &mut self,
        name: &str,
        [rows, columns]: [usize; 2],
        end: usize,
    ) -> Result<Option<Weight>, ModelError> {
        let Some(tensor) = self.checkpoint.tensor(name) else { return Ok(None) };
        let found = [tensor.n_rows(), tensor.n_columns()].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let fault = |found: String, expected: String| ModelError::Numbers {
            file: self.file(),
            tensor: name.to_owned(),
            found,
            expected,
        };
        let numbers = self.checkpoint.integers_of(name).filter(|_| found == [rows, columns]);
        let Some(numbers) = numbers else {
            return Err(fault(format!("{found:?}"), format!("integers, [{rows}, {columns}]")));
        };
        let is_wrong = |number: &&i64| usize::try_from(**number).map_or(true, |number| number >= end);
        if let Some(wrong) = numbers.iter().find(is_wrong) {
            return Err(fault(format!("the number {wrong}"), format!("numbers from 0 to {}", end - 1)));
        }
        self.used.insert(name.to_owned());
        let values: Vec<f32> = numbers.into_iter().map(|number| number as f32).collect();
        Ok(Some(Weight::from_f32(name, rows, columns, &values)))
    }

    /// Marks a tensor that the model does not need, if the file has it.
    pub fn ignore(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// The factor of all values of the matrix `stem`.weight: the only value of the tensor `stem`.scale, or 1 when the file has
    /// no such tensor. Formats whose scales have a small range need it. The scale of its input in training is not needed.
    ///
    /// # Errors
    /// As [`Weights::matrix`], except for a missing tensor.
    pub fn factor(&mut self, stem: &str) -> Result<f32, ModelError> {
        let mut value_of = |name: String| match self.checkpoint.tensor(&name) {
            Some(tensor) if tensor.n_elements() == 1 => self.vector(&name, 1).map(|value| Some(value[0])),
            _ => Ok(None),
        };
        value_of(format!("{stem}.input_scale"))?;
        Ok(value_of(format!("{stem}.scale"))?.unwrap_or(1.0))
    }

    /// The inputs of the matrix `stem`.weight in the order of its columns, `[columns]`, as whole numbers; `None` where it is their
    /// own. Matrices whose groups are in the order of activations have one.
    ///
    /// # Errors
    /// As [`Weights::matrix`], except for a missing tensor.
    pub fn input_order(&mut self, stem: &str, columns: usize) -> Result<Option<Arc<[f32]>>, ModelError> {
        self.optional_vector(&format!("{stem}.input_order"), columns)
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
        let unused = self.checkpoint.tensors().iter().find(|tensor| is_unused(&tensor.name));
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
