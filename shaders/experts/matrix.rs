//! One of the three matrices (gate, up or down) of all experts of a layer.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu::{Kernel, Team};
use crate::gpu::weight::WeightLayout;
use crate::matmul::integer::packed::PackedWeight;
use crate::op::ShapeError;
use crate::weight::Weight;

/// A matrix [outputs, columns] for each expert. One tensor holds the matrices of all experts, one after the other.
#[derive(Debug, Clone)]
pub struct ExpertMatrix {
    tensor: Weight,
    /// Rows of the tensor per expert: more than `outputs` where a tensor has two matrices of each expert.
    stride: usize,
    /// The rows of this matrix among the rows of an expert.
    rows: Range<usize>,
    /// For each expert, `stride` biases if there are some, then its factor if there is one.
    table: Option<Arc<[f32]>>,
    has_bias: bool,
    has_factors: bool,
    experts: Vec<Weight>,
    /// Weights for the integer kernels, after preparation. Empty for floating-point weights and for weights left in
    /// their file.
    packed: Arc<[PackedWeight]>,
    /// Whether the weights stay in their file and are read when a row uses them.
    left_in_file: bool,
}

impl ExpertMatrix {
    /// The tensor [n_experts * outputs, columns], and its bias [n_experts * outputs] if there is one.
    ///
    /// # Errors
    /// [`ShapeError`] when the rows of the tensor do not divide evenly among the experts, or the bias has another
    /// length.
    pub fn new(tensor: Weight, n_experts: usize, bias: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        let outputs = tensor.rows / n_experts.max(1);
        Self::with_rows(tensor, n_experts, 0..outputs, bias)
    }

    /// The two matrices of a tensor [n_experts * 2 outputs, columns], which has two matrices of each expert, one after
    /// the other.
    ///
    /// # Errors
    /// As [`ExpertMatrix::new`].
    pub fn halves(tensor: &Weight, n_experts: usize, bias: Option<&Arc<[f32]>>) -> Result<[Self; 2], ShapeError> {
        let stride = tensor.rows / n_experts.max(1);
        let half = |rows| Self::with_rows(tensor.clone(), n_experts, rows, bias.cloned());
        Ok([half(0..stride / 2)?, half(stride / 2..stride)?])
    }

    fn with_rows(
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
        let has_bias = bias.is_some();
        let of_expert = |expert: usize| tensor.slice_rows(expert * stride + rows.start..expert * stride + rows.end);
        let experts = (0..n_experts).map(of_expert).collect();
        Ok(ExpertMatrix {
            stride,
            rows,
            table: bias,
            has_bias,
            has_factors: false,
            experts,
            packed: Arc::new([]),
            left_in_file: false,
            tensor,
        })
    }

    /// Multiplies the product of each expert, before its bias, by one of `factors`, `[n_experts]`.
    ///
    /// # Errors
    /// [`ShapeError`] when there are more or fewer factors than experts.
    pub fn with_factors(self, factors: Option<&[f32]>) -> Result<Self, ShapeError> {
        let Some(factors) = factors else { return Ok(self) };
        let what = format!("factors of {:?}", self.tensor.name);
        ShapeError::check("experts", what, factors.len(), self.n_experts())?;
        let biases = |expert: usize| {
            let all = self.table.as_deref().unwrap_or(&[]);
            &all[self.table_width() * expert..][..if self.has_bias { self.stride } else { 0 }]
        };
        let of_expert = |(expert, factor): (usize, &f32)| [biases(expert), &[*factor]].concat();
        let table: Vec<f32> = factors.iter().enumerate().flat_map(of_expert).collect();
        Ok(ExpertMatrix { table: Some(table.into()), has_factors: true, ..self })
    }

    /// A matrix with the shape of this one and `slots` slots for experts, without bytes.
    pub(super) fn blank(&self, slots: usize, table: Option<Arc<[f32]>>) -> Self {
        let tensor = Weight::blank(&self.tensor, slots * self.stride);
        ExpertMatrix { tensor, table, rows: self.rows.clone(), experts: Vec::new(), packed: Arc::new([]), ..*self }
    }

    /// The tensor of all experts.
    #[must_use]
    pub fn tensor(&self) -> &Weight {
        &self.tensor
    }

    /// The number of experts.
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

    /// The row of the first expert's first output in the tensor and among the biases, and the number of rows from one expert
    /// to the next.
    #[must_use]
    pub fn first_and_stride(&self) -> (usize, usize) {
        (self.rows.start, self.stride)
    }

    /// For each expert, the biases of its rows if [`Self::has_bias`], then its factor if [`Self::has_factors`]. `None` without
    /// both.
    #[must_use]
    pub fn table(&self) -> Option<&[f32]> {
        self.table.as_deref()
    }

    /// Whether a bias is added to each product.
    #[must_use]
    pub fn has_bias(&self) -> bool {
        self.has_bias
    }

    /// Whether the products of each expert have a factor.
    #[must_use]
    pub fn has_factors(&self) -> bool {
        self.has_factors
    }

    /// Values of an expert in [`Self::table`].
    fn table_width(&self) -> usize {
        usize::from(self.has_factors) + if self.has_bias { self.stride } else { 0 }
    }

    /// One expert's matrix.
    #[must_use]
    pub fn expert(&self, expert: usize) -> &Weight {
        &self.experts[expert]
    }

    /// One expert's bias, `[outputs]`.
    #[must_use]
    pub fn expert_bias(&self, expert: usize) -> Option<&[f32]> {
        let first = expert * self.table_width() + self.rows.start;
        let table = self.table().filter(|_| self.has_bias)?;
        Some(&table[first..first + self.rows.len()])
    }

    /// The factor of one expert's products.
    #[must_use]
    pub fn expert_factor(&self, expert: usize) -> f32 {
        let last = (expert + 1) * self.table_width();
        self.table().filter(|_| self.has_factors).map_or(1.0, |table| table[last - 1])
    }

    /// Whether `kernel` multiplies these weights as integers.
    pub(super) fn is_integer(&self, kernel: Kernel) -> bool {
        kernel.is_integer() && self.tensor.format.integers().is_some() && !self.left_in_file
    }

    /// Leaves the weights in their file: they are not packed, and experts that no row uses need no memory.
    pub(super) fn leave_in_file(&mut self) {
        self.left_in_file = true;
    }

    /// Whether the weights are left in their file.
    pub(super) fn is_left_in_file(&self) -> bool {
        self.left_in_file
    }

    /// One expert's matrix for the integer kernels, if it is packed.
    pub(super) fn packed(&self, expert: usize) -> Option<&PackedWeight> {
        self.packed.get(expert)
    }

    /// Writes one expert's matrix as the planes of `layout`, the GPU layout of its tensor.
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

    /// Packs all experts if `kernel` is an integer kernel.
    pub(super) fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        if self.is_integer(kernel) {
            self.packed = PackedWeight::together(&self.experts, team).unwrap_or_default().into();
        }
    }

    /// Bytes of all experts in the form that `kernel` reads.
    pub(super) fn bytes(&self, kernel: Kernel) -> u64 {
        let stored = self.outputs() * self.tensor.row_bytes();
        let packed = self.experts.first().filter(|_| self.is_integer(kernel)).and_then(PackedWeight::size);
        (packed.unwrap_or(stored) * self.n_experts()) as u64
    }

    /// Additional bytes that the experts need when they are packed for `kernel`.
    pub(super) fn repack_overhead_bytes(&self, kernel: Kernel) -> u64 {
        let stored = self.outputs() * self.tensor.row_bytes() * self.n_experts();
        self.bytes(kernel).saturating_sub(stored as u64)
    }
}
