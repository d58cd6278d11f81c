//! Weight matrices, which stay quantised in memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::cpu::{Team, for_each_chunk};
use crate::pages::{self, Pages};
use crate::quant::Format;

/// A buffer that several weights share: a mapped file, or a vector.
pub trait Bytes: AsRef<[u8]> + Send + Sync {
    /// The number of bytes, for buffers that are filled when they are first read.
    fn byte_len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether the bytes are in a file, so that [`Bytes::release`] gives their memory back.
    fn is_in_file(&self) -> bool {
        false
    }

    /// Releases the memory of `range` if it can be loaded again, for example from a file. The contents do not change.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Starts loading `range` into memory if it is backed by a file. Call it shortly before the range is read.
    fn prefetch(&self, range: Range<usize>) {
        let _ = range;
    }

    /// The buffers that follow one another in a range of this one, if it only joins others; none otherwise.
    fn pieces(&self, range: Range<usize>) -> Vec<SharedBytes> {
        let _ = range;
        Vec::new()
    }
}

impl Bytes for Vec<u8> {}

impl Bytes for Pages<u8> {}

/// Most bytes of stored weights that are in memory while they are copied or packed. Those of a mapped file are released piece by
/// piece, so that a large matrix is never in memory twice.
pub const PIECE_BYTES: usize = 8 << 20;

/// A range of a shared buffer.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn Bytes>,
    range: Range<usize>,
}

impl SharedBytes {
    /// A range within this range; `None` when it is out of bounds.
    #[must_use]
    fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start;
        Some(SharedBytes { owner: Arc::clone(&self.owner), range: start + range.start..start + range.end })
    }

    /// The bytes `range` of `owner`; `None` when the range is out of bounds.
    #[must_use]
    pub fn new(owner: Arc<dyn Bytes>, range: Range<usize>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= owner.byte_len();
        is_inside.then_some(SharedBytes { owner, range })
    }

    /// Releases the memory if a mapped file backs it.
    pub fn release(&self) {
        self.owner.release(self.range.clone());
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

/// A weight matrix of shape `[rows, columns]`, row-major. Each row is a whole number of blocks of its format.
///
/// `rows` is the output dimension of a `Linear`, and the vocabulary size of an `Embed`. A vector has one row.
#[derive(Clone)]
pub struct Weight {
    /// The tensor's name in its file, for errors and profiles.
    pub name: Arc<str>,
    /// The storage format of its values.
    pub format: Format,
    /// Output dimension.
    pub rows: usize,
    /// Input dimension.
    pub columns: usize,
    row_bytes: usize,
    bytes: SharedBytes,
}

/// The bytes do not match the shape of a weight.
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
    /// The number of bytes does not match the shape.
    #[error("tensor {name:?} has {found} bytes, but [{rows}, {columns}] in {format} needs {expected}")]
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
    /// A weight over `bytes`, which must match the shape.
    ///
    /// # Errors
    /// [`WeightError`] when a row is not a whole number of blocks, or the number of bytes is wrong.
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
        let found = bytes.range.len();
        if found != expected {
            return Err(WeightError::WrongSize { name: name.to_owned(), found, expected, rows, columns, format });
        }
        Ok(Weight { name: name.into(), format, rows, columns, row_bytes, bytes })
    }

    /// A float32 weight from values: for tests, and for tables computed at load.
    ///
    /// # Panics
    /// When the number of values is not `rows * columns`.
    #[must_use]
    pub fn from_f32(name: &str, rows: usize, columns: usize, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Weight::new(name, Format::F32, rows, columns, bytes.into()).expect("the number of values matches the shape")
    }

    /// The same bytes as a matrix of another shape, for a tensor with more than two dimensions.
    ///
    /// # Errors
    /// [`WeightError`] when a row is not a whole number of blocks, or the shape has another number of values.
    pub fn reshaped(&self, rows: usize, columns: usize) -> Result<Self, WeightError> {
        Weight::new(&self.name, self.format, rows, columns, self.bytes.clone())
    }

    /// A weight with the name, format and columns of `like` and `rows` rows, but without bytes: memory on a device that
    /// is filled later.
    #[must_use]
    pub fn blank(like: &Weight, rows: usize) -> Self {
        Weight {
            name: format!("device memory for {}", like.name).into(),
            rows,
            bytes: Vec::new().into(),
            ..like.clone()
        }
    }

    /// Whether it has no bytes, as one made by [`Weight::blank`].
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.byte_len() == 0
    }

    /// The number of bytes. Unlike [`Weight::bytes`] it does not fill a buffer that is filled when it is first read.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.range.len()
    }

    /// Whether the bytes are in a file, so that [`Weight::release`] gives their memory back.
    #[must_use]
    pub fn is_in_file(&self) -> bool {
        self.bytes.owner.is_in_file()
    }

    /// All bytes, row after row.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Releases the memory if a mapped file backs it. Call it when the bytes are unlikely to be read again.
    pub fn release(&self) {
        self.bytes.release();
    }

    /// Starts loading the bytes in the background if a mapped file backs them.
    pub fn prefetch(&self) {
        self.bytes.owner.prefetch(self.bytes.range.clone());
    }

    /// Reads one byte of every page, so that the bytes of a mapped file are in memory and later reads do not wait for
    /// the disk.
    pub fn page_in(&self) {
        const PAGE: usize = 4096;
        std::hint::black_box(self.bytes().iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }

    /// Whether it is read faster from a copy in large pages. The pages of a file are small, and address translation limits how
    /// fast they are read, most of all in virtual machines.
    #[must_use]
    pub fn gains_from_large_pages(&self) -> bool {
        const LEAST_BYTES: usize = 4 << 20;
        self.is_in_file() && self.byte_len() >= LEAST_BYTES && pages::are_large_available()
    }

    /// A copy in large pages. The memory of the original is [released](Weight::release) meanwhile, piece by piece.
    #[must_use]
    pub fn in_large_pages(&self, team: &dyn Team) -> Weight {
        const TASK_BYTES: usize = 256 << 10;
        let (len, mut pages) = (self.byte_len(), Pages::zeroed_large(self.byte_len()));
        for (index, piece) in pages.chunks_mut(PIECE_BYTES).enumerate() {
            let start = index * PIECE_BYTES;
            let from = self.bytes.slice(start..start + piece.len()).expect("the piece is in the weight");
            for_each_chunk(team, piece, TASK_BYTES, &|task, to| {
                to.copy_from_slice(&from.as_slice()[task * TASK_BYTES..][..to.len()]);
            });
            from.release();
        }
        let bytes = SharedBytes { owner: Arc::new(pages), range: 0..len };
        Weight { bytes, ..self.clone() }
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The matrices whose rows follow one another in this one, each as it is stored; this one alone if it is stored as a whole. All
    /// but the last have the same number of rows.
    #[must_use]
    pub fn pieces(&self) -> Vec<Weight> {
        let pieces = self.bytes.owner.pieces(self.bytes.range.clone());
        let rows: Vec<usize> = pieces.iter().map(|piece| piece.range.len() / self.row_bytes).collect();
        let is_even = rows.iter().take(rows.len().saturating_sub(1)).all(|count| *count == rows[0]);
        if rows.iter().sum::<usize>() != self.rows || !is_even {
            return vec![self.clone()];
        }
        let piece = |(bytes, rows): (SharedBytes, usize)| Weight { bytes, rows, ..self.clone() };
        pieces.into_iter().zip(rows).map(piece).collect()
    }

    /// Starts loading row `row` in the background if a mapped file backs it.
    ///
    /// # Panics
    /// When `row` is out of bounds.
    pub fn prefetch_row(&self, row: usize) {
        let bytes = self.bytes.slice(row * self.row_bytes..(row + 1) * self.row_bytes);
        let SharedBytes { owner, range } = bytes.expect("the weight has the row");
        owner.prefetch(range);
    }

    /// The bytes of row `row`.
    ///
    /// # Panics
    /// When `row` is out of bounds.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.bytes()[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// The matrix of the given rows. It shares the bytes.
    ///
    /// # Panics
    /// When `rows` is out of bounds.
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Weight {
        let bytes = self.bytes.slice(rows.start * self.row_bytes..rows.end * self.row_bytes);
        Weight { rows: rows.len(), bytes: bytes.expect("the weight has these rows"), ..self.clone() }
    }

    /// The name of the tensor that it is, or that it is a [part](Weight::part) of.
    #[must_use]
    pub fn tensor(&self) -> &str {
        self.name.split_once(" [").map_or(&self.name, |(tensor, _)| tensor)
    }

    /// The matrix of the given rows under a name of its own, for tensors that hold several matrices. It shares the bytes.
    ///
    /// # Panics
    /// When `rows` is out of bounds.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> Weight {
        let name = format!("{} [{}..{}]", self.name, rows.start, rows.end);
        Weight { name: name.into(), ..self.slice_rows(rows) }
    }

    /// The whole matrix as float32. For small tensors (norms, biases) and tests.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cpu::Solo;

    /// Bytes in a file, and the ranges whose memory was released.
    struct InFile {
        bytes: Vec<u8>,
        released: Arc<Mutex<Vec<Range<usize>>>>,
    }

    impl AsRef<[u8]> for InFile {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Bytes for InFile {
        fn is_in_file(&self) -> bool {
            true
        }

        fn release(&self, range: Range<usize>) {
            self.released.lock().unwrap().push(range);
        }
    }

    #[test]
    fn a_copy_has_the_same_rows_and_releases_the_original_piece_by_piece() {
        let (rows, columns) = (5, PIECE_BYTES / 8);
        let bytes: Vec<u8> = (0..rows * columns * 4 + 8).map(|index| (index % 251) as u8).collect();
        let released = Arc::default();
        let owner = Arc::new(InFile { bytes, released: Arc::clone(&released) });
        let range = SharedBytes::new(owner, 8..8 + rows * columns * 4).unwrap();
        let weight = Weight::new("w", Format::F32, rows, columns, range).unwrap();

        let copy = weight.in_large_pages(&Solo);
        assert!(copy.bytes() == weight.bytes() && copy.row(4) == weight.row(4));
        assert!(weight.is_in_file() && !copy.is_in_file() && !copy.gains_from_large_pages());
        let half = PIECE_BYTES / 2;
        let pieces = [8..8 + 2 * half, 8 + 2 * half..8 + 4 * half, 8 + 4 * half..8 + 5 * half];
        assert_eq!(*released.lock().unwrap(), pieces);
    }

    /// Buffers one after the other.
    struct Joined(Vec<SharedBytes>);

    impl AsRef<[u8]> for Joined {
        fn as_ref(&self) -> &[u8] {
            panic!("pieces are not joined")
        }
    }

    impl Bytes for Joined {
        fn byte_len(&self) -> usize {
            self.0.iter().map(|piece| piece.range.len()).sum()
        }

        fn pieces(&self, range: Range<usize>) -> Vec<SharedBytes> {
            if range == (0..self.byte_len()) { self.0.clone() } else { Vec::new() }
        }
    }

    #[test]
    fn pieces_are_read_without_joining_them() {
        let of = |lengths: &[usize], rows: usize| {
            let joined = Joined(lengths.iter().map(|len| vec![*len as u8; *len].into()).collect());
            let len = joined.byte_len();
            Weight::new("w", Format::F32, rows, 2, SharedBytes::new(Arc::new(joined), 0..len).unwrap()).unwrap()
        };
        let pieces = of(&[16, 16, 8], 5).pieces();
        assert_eq!(pieces.iter().map(|piece| piece.rows).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(pieces[2].row(0), [8; 8]);
        assert_eq!(of(&[16, 8, 16], 5).pieces().len(), 1, "uneven");
        assert_eq!(of(&[12, 12], 3).pieces().len(), 1, "parts of rows");
        assert_eq!(Weight::from_f32("w", 2, 2, &[1.0; 4]).pieces()[0].rows, 2);
    }

    #[test]
    fn small_weights_stay_where_they_are() {
        assert!(!Weight::from_f32("w", 2, 2, &[1.0; 4]).gains_from_large_pages());
    }
}
