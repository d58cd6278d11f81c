//! Writes a quantized model tensor by tensor. The file gets its name only when it is complete.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Mutex;

use cuelight_shaders::quantize::{self, quantize};
use cuelight_shaders::weight::Weight;

use super::error::QuantizeError;
use super::partial::{PartialFile, journal_path, partial_path};
use super::plan::{PlannedTensor, QuantizePlan};
use crate::cancel::LoadCancel;
use crate::format::gguf::write::GgufBuilder;
use crate::quantization_recipe::QuantizationRecipe;

/// Most values that a thread converts at once.
const CHUNK_VALUES: usize = 1 << 18;

/// The version of the quantized formats, `general.quantization_version`.
const QUANTIZATION_VERSION: u32 = 2;

/// The progress of [`QuantizePlan::write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProgress {
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

impl QuantizePlan<'_> {
    /// Writes the quantized model to `path`, which is replaced if it exists. Until the file is complete, its name ends in
    /// `.partial`. If a run was interrupted, the next one for the same model, options and path continues with its partial file.
    ///
    /// # Errors
    /// [`QuantizeError`] when a tensor has a value that is not finite, or the file cannot be written. The partial file is removed,
    /// but not when the quantization was cancelled.
    pub fn write(
        &self,
        path: &Path,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(WriteProgress),
    ) -> Result<u64, QuantizeError> {
        let partial = partial_path(path);
        let written = self.builder().and_then(|header| self.write_partial(&partial, &header, cancel, progress));
        let moved = written.and_then(|bytes| {
            let renamed = std::fs::rename(&partial, path);
            renamed.map(|()| bytes).map_err(|source| QuantizeError::Write { path: path.to_owned(), source })
        });
        match &moved {
            Err(QuantizeError::Cancelled | QuantizeError::Locked { .. }) => {}
            // The first error is the one to report.
            Err(_) => drop((std::fs::remove_file(&partial), std::fs::remove_file(journal_path(&partial)))),
            Ok(_) => drop(std::fs::remove_file(journal_path(&partial))),
        }
        moved
    }

    fn write_partial(
        &self,
        path: &Path,
        header: &GgufBuilder,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(WriteProgress),
    ) -> Result<u64, QuantizeError> {
        let failed = |source| QuantizeError::Write { path: path.to_owned(), source };
        let header = header.header();
        let mut out = PartialFile::open(path, self.identity(), &header).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => QuantizeError::Locked { path: path.to_owned() },
            _ => failed(source),
        })?;
        let (total_bytes, _) = self.bytes();
        let mut done_bytes: u64 = self.tensors.iter().take(out.finished()).map(|tensor| tensor.from_bytes).sum();
        progress(WriteProgress { done_bytes, total_bytes });
        for (tensor, range) in self.tensors.iter().zip(&header.ranges).skip(out.finished()) {
            cancel.check().map_err(|_| QuantizeError::Cancelled)?;
            self.append(&mut out, tensor, range.start)?.map_err(failed)?;
            done_bytes += tensor.from_bytes;
            progress(WriteProgress { done_bytes, total_bytes });
        }
        out.finish(header.file_bytes).map_err(failed)?;
        Ok(header.file_bytes as u64)
    }

    /// Appends the new bytes of a tensor.
    fn append(
        &self,
        out: &mut PartialFile,
        tensor: &PlannedTensor,
        start: usize,
    ) -> Result<io::Result<()>, QuantizeError> {
        if tensor.has_integers {
            let integers = self.checkpoint.integers_of(&tensor.name).unwrap_or_default();
            // All are 32 bits wide in the file.
            let bytes: Vec<u8> = integers.into_iter().flat_map(|integer| (integer as i32).to_le_bytes()).collect();
            return Ok(out.append(start, &bytes));
        }
        let weight = self.checkpoint.weight(&tensor.name)?;
        Ok(match tensor.from == tensor.to {
            true => out.append(start, weight.bytes()),
            false => out.append(start, &self.convert(tensor, &weight)?),
        })
    }

    /// A hash of what determines the bytes of tensors, besides the names and formats in the header of the file.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        self.checkpoint.files().fingerprint().hash(&mut hasher);
        if let Some(importance) = &self.options.importance {
            importance.hash_into(&mut hasher);
        }
        hasher.finish()
    }

    /// The new file's metadata and table of tensors.
    fn builder(&self) -> Result<GgufBuilder, QuantizeError> {
        let dropped = |key: &str| {
            key.starts_with("split.")
                || key.starts_with("quantize.imatrix.")
                || ["general.file_type", "general.quantization_version", "general.alignment"].contains(&key)
        };
        let kept = self.checkpoint.metadata().iter().filter(|(key, _)| !dropped(key));
        let file = kept.fold(GgufBuilder::new(), |file, (key, value)| file.key(key, value));
        let file = file.key("general.quantization_version", QUANTIZATION_VERSION);
        let file = match self.file_type() {
            Some(file_type) => file.key("general.file_type", file_type),
            None => file,
        };
        let file = if self.options.is_complete { self.checkpoint.add_text_keys(file)? } else { file };
        let file = match &self.options.importance {
            Some(importance) => importance.describe(file),
            None => file,
        };
        Ok(self.tensors.iter().fold(file, |file, tensor| {
            let bytes = usize::try_from(tensor.to_bytes).unwrap_or(usize::MAX);
            file.space(&tensor.name, &tensor.dims, tensor.ggml_type(), bytes)
        }))
    }

    /// The number of the recipe, or of the one for the format of the largest tensor if all keep their formats.
    fn file_type(&self) -> Option<u32> {
        let Some(target) = self.options.target else {
            let largest = self.tensors.iter().max_by_key(|tensor| tensor.to_bytes)?;
            return QuantizationRecipe::named(largest.to.name()).map(|recipe| recipe.file_type);
        };
        Some(target.recipe().file_type)
    }

    /// The bytes of a tensor in its new format, computed on several threads.
    fn convert(&self, tensor: &PlannedTensor, weight: &Weight) -> Result<Vec<u8>, QuantizeError> {
        let mut bytes = vec![0; usize::try_from(tensor.to_bytes).unwrap_or(usize::MAX)];
        let matrix_rows = tensor.dims.get(1).map_or(1, |rows| *rows as usize).max(1);
        let row_bytes = bytes.len() / weight.rows.max(1);
        // Chunks end with the matrix of an expert, since each expert has its own importance.
        let chunk_rows = (CHUNK_VALUES / weight.columns.max(1)).clamp(1, matrix_rows);
        let mut chunks = Vec::new();
        let mut rest = &mut bytes[..];
        let mut first = 0;
        while first < weight.rows {
            let rows = chunk_rows.min(matrix_rows - first % matrix_rows);
            let (chunk, later) = rest.split_at_mut(rows * row_bytes);
            chunks.push((first, rows, chunk));
            (rest, first) = (later, first + rows);
        }
        let (next, failure) = (Mutex::new(chunks.into_iter()), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| {
                    let mut values = Vec::new();
                    let take = || next.lock().unwrap_or_else(|error| error.into_inner()).next();
                    while let Some((first, rows, out)) = take() {
                        let importance = self.importance_of(tensor, first / matrix_rows);
                        let converted = convert_rows(tensor, weight, first..first + rows, importance, &mut values, out);
                        if let Err(error) = converted {
                            failure.lock().unwrap_or_else(|error| error.into_inner()).get_or_insert(error);
                        }
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(|error| error.into_inner()) {
            None => Ok(bytes),
            Some(source) => {
                let (path, tensor) = (self.checkpoint.path().to_owned(), tensor.name.clone());
                Err(QuantizeError::Tensor { path, tensor, source })
            }
        }
    }

    fn importance_of(&self, tensor: &PlannedTensor, expert: usize) -> Option<&[f32]> {
        self.options.importance.as_ref()?.of(&tensor.name, expert)
    }
}

/// Converts the rows `rows` of a weight.
fn convert_rows(
    tensor: &PlannedTensor,
    weight: &Weight,
    rows: std::ops::Range<usize>,
    importance: Option<&[f32]>,
    values: &mut Vec<f32>,
    out: &mut [u8],
) -> Result<(), quantize::QuantizeError> {
    values.resize(rows.len() * weight.columns, 0.0);
    let row_bytes = weight.bytes().len() / weight.rows.max(1);
    weight.format.dequantize(&weight.bytes()[rows.start * row_bytes..rows.end * row_bytes], values);
    quantize(tensor.to, values, importance, out)
}
