//! The rows of a stored matrix, with factors for its columns: their largest values, their bytes, and their codes.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuelight_shaders::quant::Format;
use cuelight_shaders::quantize::{QuantizeError, quantize};

use super::options::Clip;

/// Most values that a thread converts at once.
const CHUNK_VALUES: usize = 1 << 18;

/// The largest code. The smallest is its negative, so that codes are symmetric.
const LARGEST_CODE: f32 = 127.0;

/// A matrix as a file stores it. Tensors with more dimensions are the rows of all their matrices.
pub(super) struct Rows<'a> {
    /// F32, F16 or BF16.
    pub format: Format,
    pub columns: usize,
    pub bytes: &'a [u8],
    /// The factor of each column.
    pub factors: Option<&'a [f32]>,
    pub threads: usize,
}

/// A quantized matrix.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Codes {
    /// A signed byte for each value.
    pub codes: Vec<u8>,
    /// A scale for each row, in the format of the matrix.
    pub scales: Vec<u8>,
}

impl Rows<'_> {
    /// The largest magnitude of each column, without the factors.
    pub(super) fn column_maxima(&self) -> Vec<f32> {
        let without_factors = Rows { factors: None, ..*self };
        let of_chunk = |_: usize, values: &mut [f32]| {
            let mut maxima = vec![0.0_f32; self.columns];
            for row in values.chunks_exact(self.columns) {
                maxima.iter_mut().zip(row).for_each(|(most, value)| *most = most.max(value.abs()));
            }
            maxima
        };
        let larger = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| a.max(*b)).collect();
        without_factors.in_chunks(of_chunk).into_iter().reduce(larger).unwrap_or_default()
    }

    /// The values in the format of the matrix.
    pub(super) fn scaled(&self) -> Vec<u8> {
        self.in_chunks(|_, values| encoded(self.format, values)).concat()
    }

    /// The codes and scales of all rows.
    ///
    /// # Errors
    /// [`QuantizeError::NotFinite`].
    pub(super) fn quantized(&self, clip: Clip) -> Result<Codes, QuantizeError> {
        let of_chunk = |first: usize, values: &mut [f32]| {
            check_finite(first * self.columns, values)?;
            let rows = values.chunks_exact(self.columns);
            let scales =
                encoded(self.format, &rows.clone().map(|row| limit(row, clip) / LARGEST_CODE).collect::<Vec<_>>());
            let mut rounded = vec![0.0; rows.len()];
            self.format.dequantize(&scales, &mut rounded);
            let codes = rows.zip(&rounded).flat_map(|(row, scale)| codes_of(row, *scale)).collect();
            Ok(Codes { codes, scales })
        };
        let chunks = self.in_chunks(of_chunk).into_iter().collect::<Result<Vec<Codes>, QuantizeError>>()?;
        let (codes, scales): (Vec<_>, Vec<_>) = chunks.into_iter().map(|chunk| (chunk.codes, chunk.scales)).unzip();
        Ok(Codes { codes: codes.concat(), scales: scales.concat() })
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.row_bytes().max(1)
    }

    fn row_bytes(&self) -> usize {
        self.columns * self.format.block_bytes()
    }

    /// Reads some rows, with the factors.
    fn read(&self, rows: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.columns];
        let row_bytes = self.row_bytes();
        self.format.dequantize(&self.bytes[rows.start * row_bytes..rows.end * row_bytes], &mut values);
        for row in values.chunks_exact_mut(self.columns.max(1)) {
            row.iter_mut().zip(self.factors.into_iter().flatten()).for_each(|(value, factor)| *value *= factor);
        }
        values
    }

    /// What `work` gives for the first row and the values of each chunk of rows, in order.
    fn in_chunks<R: Send>(&self, work: impl Fn(usize, &mut [f32]) -> R + Sync) -> Vec<R> {
        let step = (CHUNK_VALUES / self.columns.max(1)).max(1);
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let first = next.fetch_add(step, Ordering::Relaxed);
                        if first >= self.count() {
                            return;
                        }
                        let result = work(first, &mut self.read(first..self.count().min(first + step)));
                        done.lock().unwrap_or_else(|error| error.into_inner()).push((first, result));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(|error| error.into_inner());
        done.sort_by_key(|(first, _)| *first);
        done.into_iter().map(|(_, result)| result).collect()
    }
}

/// Values in F32, F16 or BF16.
pub(super) fn encoded(format: Format, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * format.block_bytes()];
    // Rounding to another floating-point type has no errors.
    let _ = quantize(format, values, None, &mut bytes);
    bytes
}

fn check_finite(first: usize, values: &[f32]) -> Result<(), QuantizeError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(QuantizeError::NotFinite { index: first + index, value: values[index] }),
        None => Ok(()),
    }
}

/// The largest magnitude of a row that its codes represent.
fn limit(row: &[f32], clip: Clip) -> f32 {
    let mut magnitudes: Vec<f32> = row.iter().map(|value| value.abs()).collect();
    match clip {
        Clip::Max => magnitudes.into_iter().fold(0.0, f32::max),
        Clip::Percentile(percent) => {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // At most the length of the row.
            let count = (percent / 100.0 * row.len() as f64).ceil() as usize;
            *magnitudes.select_nth_unstable_by(count.clamp(1, row.len()) - 1, f32::total_cmp).1
        }
    }
}

/// The codes of a row. A scale of 0 stands for a row whose values are too small for a scale.
fn codes_of(row: &[f32], scale: f32) -> impl Iterator<Item = u8> {
    let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
    let code = move |value: &f32| {
        let code = (f64::from(*value) * inverse).round_ties_even();
        #[allow(clippy::cast_possible_truncation)] // Within the range of codes.
        let code = code.clamp(-f64::from(LARGEST_CODE), f64::from(LARGEST_CODE)) as i8;
        code.to_le_bytes()[0]
    };
    row.iter().map(code)
}
