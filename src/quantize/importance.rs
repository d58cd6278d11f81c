//! The importance of the columns of each matrix: the mean square of each input, measured on a text.
//!
//! Reads the files of llama.cpp's `llama-imatrix`: GGUF files with the tensors `NAME.in_sum2` (sums of squares, [columns,
//! matrices]) and `NAME.counts`, and the older binary form.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use super::error::QuantizeError;
use crate::format::gguf::Gguf;
use crate::format::gguf::write::GgufBuilder;

/// The most entries that the older form may state. Real files have hundreds.
const ENTRIES_MAX: usize = 1 << 16;

/// The importance of columns, by the names of tensors.
#[derive(Debug)]
pub struct ImportanceMatrix {
    path: PathBuf,
    /// For each tensor its columns, and the importance of each, expert after expert.
    entries: HashMap<String, Entry>,
}

#[derive(Debug, PartialEq)]
struct Entry {
    columns: usize,
    values: Vec<f32>,
}

impl ImportanceMatrix {
    /// Reads a file in either form.
    ///
    /// # Errors
    /// [`QuantizeError`] when the file cannot be read, or is not an importance matrix.
    pub fn open(path: &Path) -> Result<Self, QuantizeError> {
        let bytes = std::fs::read(path).map_err(|source| QuantizeError::Read { path: path.to_owned(), source })?;
        let entries = if bytes.starts_with(b"GGUF") { of_gguf(path, bytes)? } else { of_binary(path, &bytes)? };
        if entries.is_empty() {
            return Err(not_importance(path, "it has no entries"));
        }
        Ok(ImportanceMatrix { path: path.to_owned(), entries })
    }

    /// The importance of the columns of a tensor, or of one of its experts; `None` when it was not measured.
    #[must_use]
    pub fn of(&self, tensor: &str, expert: usize) -> Option<&[f32]> {
        let entry = self.entries.get(tensor)?;
        entry.values.chunks_exact(entry.columns).nth(expert)
    }

    /// Checks that the importance of a tensor has as many columns as the tensor.
    pub(super) fn check(&self, tensor: &str, columns: usize) -> Result<(), QuantizeError> {
        match self.entries.get(tensor) {
            Some(entry) if entry.columns != columns => Err(QuantizeError::ImportanceSize {
                path: self.path.clone(),
                tensor: tensor.to_owned(),
                found: entry.columns,
                expected: columns,
            }),
            _ => Ok(()),
        }
    }

    /// Adds all values to a hash.
    pub(super) fn hash_into(&self, hasher: &mut impl Hasher) {
        let mut names: Vec<&String> = self.entries.keys().collect();
        names.sort();
        for name in names {
            name.hash(hasher);
            self.entries[name].values.iter().for_each(|value| hasher.write_u32(value.to_bits()));
        }
    }

    /// Adds the keys that state with what a model was quantized.
    pub(super) fn describe(&self, file: GgufBuilder) -> GgufBuilder {
        let entries = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        file.key("quantize.imatrix.file", self.path.display().to_string())
            .key("quantize.imatrix.entries_count", entries)
    }
}

fn not_importance(path: &Path, reason: &str) -> QuantizeError {
    QuantizeError::NotImportance { path: path.to_owned(), reason: reason.to_owned() }
}

fn of_gguf(path: &Path, bytes: Vec<u8>) -> Result<HashMap<String, Entry>, QuantizeError> {
    let gguf = Gguf::from_bytes(&path.display().to_string(), bytes)?;
    let sums = gguf.tensors().iter().filter_map(|tensor| tensor.name.strip_suffix(".in_sum2"));
    sums.map(|name| Ok((name.to_owned(), entry_of_gguf(&gguf, path, name)?))).collect()
}

fn entry_of_gguf(gguf: &Gguf, path: &Path, name: &str) -> Result<Entry, QuantizeError> {
    let (sums, counts) = (gguf.weight(&format!("{name}.in_sum2"))?, gguf.weight(&format!("{name}.counts"))?);
    let (columns, counts) = (sums.columns, counts.to_f32());
    let mut values = sums.to_f32();
    if columns == 0 || counts.len() * columns != values.len() {
        return Err(not_importance(path, &format!("the sums and counts of {name:?} do not fit one another")));
    }
    for (values, count) in values.chunks_exact_mut(columns).zip(&counts) {
        // The inputs of an expert that was never used are all equally important.
        values.iter_mut().for_each(|value| *value = if *count > 0.0 { *value / count } else { 1.0 });
    }
    usable(path, name, Entry { columns, values })
}

/// The older form: the number of entries; for each the length of its name, the name, the number of calls, the number of values,
/// and the values.
fn of_binary(path: &Path, bytes: &[u8]) -> Result<HashMap<String, Entry>, QuantizeError> {
    let mut reader = Reader { bytes };
    let truncated = || not_importance(path, "it is neither a GGUF file nor a complete file of the older form");
    let count = reader.number().filter(|count| *count <= ENTRIES_MAX).ok_or_else(truncated)?;
    let mut entries = HashMap::new();
    for _ in 0..count {
        let (name, values) = reader.entry().ok_or_else(truncated)?;
        let entry = usable(path, &name, Entry { columns: values.len(), values })?;
        entries.insert(name, entry);
    }
    Ok(entries)
}

/// Refuses importance that is negative or not a number.
fn usable(path: &Path, name: &str, entry: Entry) -> Result<Entry, QuantizeError> {
    if entry.columns > 0 && entry.values.iter().all(|value| value.is_finite() && *value >= 0.0) {
        return Ok(entry);
    }
    Err(not_importance(path, &format!("the importance of {name:?} has no values, or negative or infinite ones")))
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    /// A 32-bit number that is not negative.
    fn number(&mut self) -> Option<usize> {
        usize::try_from(i32::from_le_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    fn entry(&mut self) -> Option<(String, Vec<f32>)> {
        let name_bytes = self.number()?;
        let name = String::from_utf8(self.take(name_bytes)?.to_vec()).ok()?;
        let (calls, count) = (self.number()?.max(1), self.number()?);
        let values = self.take(count.checked_mul(4)?)?;
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes) / calls as f32;
        Some((name, values.as_chunks::<4>().0.iter().map(value).collect()))
    }
}
