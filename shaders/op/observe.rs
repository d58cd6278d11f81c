//! What the matrices of an op multiply, for programs that measure it.

/// Receives the rows that matrices multiply.
pub trait InputObserver: Send + std::fmt::Debug {
    /// Some rows are multiplied by a matrix.
    fn observe(&mut self, input: MatrixInput<'_>);
}

/// Rows that a matrix multiplies, before they are rounded.
#[derive(Debug, Clone, Copy)]
pub struct MatrixInput<'a> {
    /// The tensor of the matrix.
    pub tensor: &'a str,
    /// The number of the matrix in its tensor: of an expert or a head.
    pub matrix: usize,
    /// Matrices in the tensor.
    pub matrices: usize,
    /// Values in a row.
    pub columns: usize,
    /// [rows, columns]
    pub rows: &'a [f32],
}
