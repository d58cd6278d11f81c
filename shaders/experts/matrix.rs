//! One of the three matrices of every expert of a layer: gate, up or down.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::{Kernel, Team};
use crate::gpu::weight::WeightLayout;
use crate::matmul::integer::packed::PackedWeight;
use crate::op::ShapeError;
use crate::weight::Weight;

/// A matrix [outputs, columns] for each expert, in one tensor that has the experts one after the other.
#[derive(Debug, Clone)]
pub struct ExpertMatrix {
    tensor: Weight,
    /// Rows of the tensor that belong to one expert: more than `outputs` where a tensor has two matrices of each.
    stride: usize,
    /// Of those, the rows of this matrix.
    rows: Range<usize>,
    /// [experts * stride]
    bias: Option<Arc<[f32]>>,
    experts: Vec<Weight>,
    /// For the integer kernels, once prepared; none for weights in floating point, or left in their file.
    packed: Arc<[PackedWeight]>,
    /// Whether the weights are read as they lie in their file, when a row uses them.
    left_in_file: bool,
}

impl ExpertMatrix {
    /// The tensor [n_experts * outputs, columns], and its bias [n_experts * outputs] if there is one.
    ///
    /// # Errors
    /// [`ShapeError`] when the tensor is no whole number of experts, or the bias is of another length.
    pub fn new(tensor: Weight, n_experts: usize, bias: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        let outputs = tensor.rows / n_experts.max(1);
        Self::part(tensor, n_experts, 0..outputs, bias)
    }

    /// The two halves of a tensor [n_experts * 2 outputs, columns] that has two matrices of each expert, one after the other.
    ///
    /// # Errors
    /// As [`ExpertMatrix::new`].
    pub fn halves(tensor: &Weight, n_experts: usize, bias: Option<&Arc<[f32]>>) -> Result<[Self; 2], ShapeError> {
        let stride = tensor.rows / n_experts.max(1);
        let part = |rows| Self::part(tensor.clone(), n_experts, rows, bias.cloned());
        Ok([part(0..stride / 2)?, part(stride / 2..stride)?])
    }

    fn part(
        tensor: Weight,
        n_experts: usize,
        rows: Range<usize>,
        bias: Option<Arc<[f32]>>,
    ) -> Result<Self, ShapeError> {
        let stride = tensor.rows / n_experts.max(1);
        let name = &tensor.name;
        ShapeError::check("experts", format!("rows of {name:?}"), tensor.rows, stride * n_experts)?;
        if let Some(bias) = &bias {
            ShapeError::check("experts", format!("bias of {name:?}"), bias.len(), tensor.rows)?;
        }
        let of_expert = |expert: usize| tensor.part(expert * stride + rows.start..expert * stride + rows.end);
        let experts = (0..n_experts).map(of_expert).collect();
        Ok(ExpertMatrix { stride, rows, bias, experts, packed: Arc::new([]), left_in_file: false, tensor })
    }

    /// Room for so many experts like these, without any bytes.
    pub(super) fn blank(&self, places: usize, bias: Option<Arc<[f32]>>) -> Self {
        let tensor = Weight::blank(&self.tensor, places * self.stride);
        ExpertMatrix { tensor, bias, rows: self.rows.clone(), experts: Vec::new(), packed: Arc::new([]), ..*self }
    }

    /// The tensor of all experts.
    #[must_use]
    pub fn tensor(&self) -> &Weight {
        &self.tensor
    }

    /// How many experts there are.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.tensor.rows / self.stride.max(1)
    }

    /// Output dimension of one expert.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.rows.len()
    }

    /// Input dimension.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.tensor.columns
    }

    /// The bias of the first expert's first output in [`ExpertMatrix::bias`], the first row of the tensor that belongs to it,
    /// and the distance to the next expert's.
    #[must_use]
    pub fn first_and_stride(&self) -> (usize, usize) {
        (self.rows.start, self.stride)
    }

    /// The bias of all rows of the tensor.
    #[must_use]
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// One expert's matrix.
    #[must_use]
    pub fn expert(&self, expert: usize) -> &Weight {
        &self.experts[expert]
    }

    /// One expert's bias, `[outputs]`.
    #[must_use]
    pub fn expert_bias(&self, expert: usize) -> Option<&[f32]> {
        let first = expert * self.stride + self.rows.start;
        self.bias.as_ref().map(|bias| &bias[first..first + self.rows.len()])
    }

    /// Whether a kernel multiplies it in integers.
    pub(super) fn is_integer(&self, kernel: Kernel) -> bool {
        kernel.is_integer() && self.tensor.format.integers().is_some() && !self.left_in_file
    }

    /// Leaves the weights where they are: none are arranged, and what no row uses takes no memory.
    pub(super) fn leave_in_file(&mut self) {
        self.left_in_file = true;
    }

    /// Whether they were left in their file.
    pub(super) fn is_left_in_file(&self) -> bool {
        self.left_in_file
    }

    /// One expert's matrix for the integer kernels, where there is one.
    pub(super) fn packed(&self, expert: usize) -> Option<&PackedWeight> {
        self.packed.get(expert)
    }

    /// Writes one expert's matrix as the planes of a GPU's layout for its tensor.
    pub(super) fn write_planes(&self, expert: usize, layout: &WeightLayout, planes: [&mut [u8]; 4]) {
        let weight = &self.experts[expert];
        match self.packed(expert) {
            Some(packed) => packed.write_planes(weight, planes),
            None => {
                let stored = layout.planes(weight, 0..weight.rows);
                planes.into_iter().zip(stored).for_each(|(plane, stored)| plane.copy_from_slice(&stored));
            }
        }
    }

    /// Arranges all experts for a kernel.
    pub(super) fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if self.is_integer(kernel) {
            self.packed = PackedWeight::together(&self.experts, team).unwrap_or_default().into();
        }
    }

    /// Bytes of all experts as a kernel reads them.
    pub(super) fn bytes(&self, kernel: Kernel) -> u64 {
        let stored = self.outputs() * self.tensor.row_bytes();
        let packed = self.experts.first().filter(|_| self.is_integer(kernel)).and_then(PackedWeight::size);
        (packed.unwrap_or(stored) * self.n_experts()) as u64
    }

    /// By how many bytes they grow when they are arranged.
    pub(super) fn growth(&self, kernel: Kernel) -> u64 {
        let stored = self.outputs() * self.tensor.row_bytes() * self.n_experts();
        self.bytes(kernel).saturating_sub(stored as u64)
    }
}
