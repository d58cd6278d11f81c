//! A matrix that stays quantised in memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::quant::Format;

/// Bytes that several weights are parts of: a mapped file, or a vector.
pub trait Bytes: AsRef<[u8]> + Send + Sync {
    /// Gives the memory of a part back to the system where it can be had again, as from a file. The bytes stay the same.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Asks for the memory of a part, where it has to be fetched, as from a file: it will be read soon.
    fn prefetch(&self, range: Range<usize>) {
        let _ = range;
    }
}

impl Bytes for Vec<u8> {}

/// A part of bytes with a shared owner.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn Bytes>,
    range: Range<usize>,
}

impl SharedBytes {
    /// A part of this part.
    #[must_use]
    fn part(&self, range: Range<usize>) -> Option<Self> {
        self.as_slice().get(range.clone())?;
        let start = self.range.start;
        Some(SharedBytes { owner: Arc::clone(&self.owner), range: start + range.start..start + range.end })
    }

    /// The part `range` of the owner's bytes; `None` when it reaches beyond them.
    #[must_use]
    pub fn new(owner: Arc<dyn Bytes>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(SharedBytes { owner, range })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        SharedBytes { owner: Arc::new(bytes), range }
    }
}

/// A weight matrix `[rows, columns]`, row-major, each row a whole number of blocks of its format.
///
/// `rows` is the output dimension of a Linear and the vocabulary of an Embed; a vector has one row.
#[derive(Clone)]
pub struct Weight {
    /// The tensor's name in its file, for errors and profiles.
    pub name: Arc<str>,
    /// How its values are stored.
    pub format: Format,
    /// Output dimension.
    pub rows: usize,
    /// Input dimension.
    pub columns: usize,
    row_bytes: usize,
    bytes: SharedBytes,
}

/// Why bytes do not make a weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// A row is not a whole number of blocks.
    #[error("tensor {name:?} has rows of {columns} values, which is not a multiple of {format}'s block of {block}")]
    RaggedRow {
        /// The tensor.
        name: String,
        /// Its row length.
        columns: usize,
        /// Its format.
        format: Format,
        /// Values in a block.
        block: usize,
    },
    /// The bytes are not as many as the shape needs.
    #[error("tensor {name:?} has {found} bytes, but [{rows}, {columns}] in {format} takes {expected}")]
    WrongSize {
        /// The tensor.
        name: String,
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        expected: usize,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
        /// Its format.
        format: Format,
    },
}

impl Weight {
    /// Checks the bytes against the shape.
    ///
    /// # Errors
    /// [`WeightError`] when a row is not a whole number of blocks, or the size is wrong.
    pub fn new(
        name: &str,
        format: Format,
        rows: usize,
        columns: usize,
        bytes: SharedBytes,
    ) -> Result<Self, WeightError> {
        let row_bytes = format.row_bytes(columns).ok_or_else(|| WeightError::RaggedRow {
            name: name.to_owned(),
            columns,
            format,
            block: format.block_len(),
        })?;
        let expected = row_bytes.saturating_mul(rows);
        let found = bytes.as_slice().len();
        if found != expected {
            return Err(WeightError::WrongSize { name: name.to_owned(), found, expected, rows, columns, format });
        }
        Ok(Weight { name: name.into(), format, rows, columns, row_bytes, bytes })
    }

    /// A float32 weight from values: for tests, and for tables computed at load.
    ///
    /// # Panics
    /// When `values` are not `rows * columns`.
    #[must_use]
    pub fn from_f32(name: &str, rows: usize, columns: usize, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Weight::new(name, Format::F32, rows, columns, bytes.into()).expect("values fill the shape")
    }

    /// A weight like another one, of so many rows, which has no bytes: only a device has some, which come to it later.
    #[must_use]
    pub fn blank(like: &Weight, rows: usize) -> Self {
        Weight { name: format!("room for {}", like.name).into(), rows, bytes: Vec::new().into(), ..like.clone() }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.bytes().is_empty()
    }

    /// All bytes, row after row.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Says that the bytes will hardly be read again: the memory of a mapped file is given back.
    pub fn release(&self) {
        self.bytes.owner.release(self.bytes.range.clone());
    }

    /// Says that the bytes will be read soon: those of a mapped file are fetched meanwhile.
    pub fn prefetch(&self) {
        self.bytes.owner.prefetch(self.bytes.range.clone());
    }

    /// Touches every page: the bytes of a mapped file are in memory then, and whoever reads them does not wait for the disk.
    pub fn page_in(&self) {
        const PAGE: usize = 4096;
        std::hint::black_box(self.bytes().iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The bytes of row `row`.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.bytes()[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Some of its rows, as a matrix of their own over the same bytes.
    ///
    /// # Panics
    /// When there are no such rows.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> Weight {
        let bytes = self.bytes.part(rows.start * self.row_bytes..rows.end * self.row_bytes);
        Weight { rows: rows.len(), bytes: bytes.expect("the weight has these rows"), ..self.clone() }
    }

    /// The whole matrix in float32: for small tensors (norms, biases) and for tests.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        self.format.dequantize(self.bytes(), &mut values);
        values
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}, {}] {}", self.name, self.rows, self.columns, self.format)
    }
}
