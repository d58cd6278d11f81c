//! Measures the importance of the columns of each matrix: the sum of squares of each of its inputs, over the rows of a text.
//!
//! An [`ImportanceSums`] observes an engine on the CPU ([`LoadOptions::observer`](crate::load::LoadOptions::observer)) while it
//! computes the text. [`ImportanceSums::file`] is in the form of llama.cpp's `llama-imatrix` (`tools/imatrix/imatrix.cpp`), which
//! [`ImportanceMatrix`](crate::quantize::ImportanceMatrix) reads.

use std::collections::BTreeMap;

use cuelight_shaders::op::{InputObserver, MatrixInput};

use crate::checkpoint::TensorInfo;
use crate::format::gguf::write::GgufBuilder;

/// The text that was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredText {
    /// Where it comes from.
    pub name: String,
    /// The number of windows that were computed.
    pub windows: usize,
    /// Tokens of a window.
    pub window_tokens: usize,
}

/// The sums of squares of the inputs of each matrix of a layer. The head is left out, as llama-imatrix does.
#[derive(Debug, Clone, Default)]
pub struct ImportanceSums {
    tensors: BTreeMap<String, Sums>,
}

/// The sums of a tensor.
#[derive(Debug, Clone)]
struct Sums {
    columns: usize,
    /// [matrices, columns]
    squares: Vec<f64>,
    /// The number of rows that each matrix has multiplied.
    counts: Vec<u64>,
}

impl InputObserver for ImportanceSums {
    fn observe(&mut self, input: MatrixInput<'_>) {
        let MatrixInput { tensor, matrix, matrices, columns, rows } = input;
        if !tensor.starts_with("blk.") {
            return;
        }
        if !self.tensors.contains_key(tensor) {
            let sums = Sums { columns, squares: vec![0.0; matrices * columns], counts: vec![0; matrices] };
            self.tensors.insert(tensor.to_owned(), sums);
        }
        let Some(sums) = self.tensors.get_mut(tensor) else { return };
        let squares = &mut sums.squares[matrix * columns..][..columns];
        for row in rows.chunks_exact(columns) {
            squares.iter_mut().zip(row).for_each(|(square, x)| *square += f64::from(*x) * f64::from(*x));
        }
        sums.counts[matrix] += (rows.len() / columns) as u64;
    }
}

impl ImportanceSums {
    /// Leaves out what is not a tensor of the file, because the load has made it of others.
    pub fn retain(&mut self, tensors: &[TensorInfo]) {
        let columns: BTreeMap<&str, Option<&u64>> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dims.first())).collect();
        self.tensors.retain(|name, sums| columns.get(name.as_str()) == Some(&Some(&(sums.columns as u64))));
    }

    /// The number of measured tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The number of matrices that have multiplied no row, such as those of experts that the text never used.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.tensors.values().flat_map(|sums| &sums.counts).filter(|count| **count == 0).count()
    }

    /// The sums as a GGUF file: `NAME.in_sum2` [columns, matrices] and `NAME.counts` [1, matrices], in float32.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // The file has float32 sums, and a text has fewer than 2^32 windows.
    pub fn file(&self, text: &MeasuredText) -> Vec<u8> {
        let file = GgufBuilder::new()
            .key("general.type", "imatrix")
            .key("imatrix.datasets", vec![text.name.clone()])
            .key("imatrix.chunk_count", text.windows as u32)
            .key("imatrix.chunk_size", text.window_tokens as u32);
        let tensors = self.tensors.iter().fold(file, |file, (name, sums)| {
            let matrices = sums.counts.len() as u64;
            let squares: Vec<f32> = sums.squares.iter().map(|sum| *sum as f32).collect();
            let counts: Vec<f32> = sums.counts.iter().map(|count| *count as f32).collect();
            file.tensor_f32(&format!("{name}.in_sum2"), &[sums.columns as u64, matrices], &squares).tensor_f32(
                &format!("{name}.counts"),
                &[1, matrices],
                &counts,
            )
        });
        tensors.build()
    }
}
