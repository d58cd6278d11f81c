//! GGUF: a model in one file, or in numbered shards; metadata first, then a table of tensors, then their bytes.
//!
//! Files are mapped, never read whole. Every count, length, offset and type that the file states is checked against
//! the file's size before it is used or anything is allocated for it, so that a truncated, damaged or hostile file is
//! a sentence and not a crash.
//!
//! - [`error`]: what can be wrong
//! - [`value`]: typed metadata
//! - [`header`]: bytes of one file to its metadata and tensor table
//! - [`shards`]: the files that make one model
//! - [`mod@write`]: the other direction
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

pub mod error;
pub mod header;
mod shards;
pub mod value;
pub mod write;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes, Weight};

pub use error::{GgufError, GgufFault};
pub use header::TensorInfo;
use header::{Header, parse};
use value::FromValue;
pub use value::{Strings, Value};

/// A file's bytes: a map, or a vector.
type FileBytes = Arc<dyn Bytes>;

/// An open model: its metadata, its table of tensors, and their bytes.
pub struct Gguf {
    path: PathBuf,
    metadata: Vec<(String, Value)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
    shards: Vec<FileBytes>,
}

impl Gguf {
    /// Opens a file. Of a model in shards (`name-00001-of-00003.gguf`) any shard opens the whole.
    ///
    /// # Errors
    /// [`GgufError`] naming the file and what is wrong with it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let Some(name) = shards::ShardName::of(path) else {
            let gguf = Self::parse_shards(&[path.to_owned()])?;
            return gguf.check_is_whole();
        };
        let paths: Vec<PathBuf> = (0..name.count).map(|index| name.path(index)).collect();
        let gguf = Self::parse_shards(&paths)?;
        shards::check_tensor_count(&gguf)?;
        Ok(gguf)
    }

    /// Reads one file that is already in memory; `name` stands for its path in errors.
    ///
    /// # Errors
    /// [`GgufError`] as for [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_shared(name, Arc::new(bytes))
    }

    /// The same for bytes that somebody else owns too.
    ///
    /// # Errors
    /// [`GgufError`] as for [`Gguf::open`].
    pub fn from_shared(name: &str, bytes: Arc<dyn Bytes>) -> Result<Self, GgufError> {
        let path = PathBuf::from(name);
        let header = parse(&bytes, 0).map_err(|fault| fault.in_file(&path))?;
        Self::join(path, vec![(header, bytes)])?.check_is_whole()
    }

    fn parse_shards(paths: &[PathBuf]) -> Result<Self, GgufError> {
        let mut parsed = Vec::with_capacity(paths.len());
        for (index, path) in paths.iter().enumerate() {
            let bytes = map(path).map_err(|error| GgufFault::Unreadable(error).in_file(path))?;
            let header = parse(&bytes, index).map_err(|fault| fault.in_file(path))?;
            if paths.len() > 1 {
                shards::check_place(&header, index, paths.len()).map_err(|fault| fault.in_file(path))?;
            }
            parsed.push((header, bytes));
        }
        Self::join(paths[0].clone(), parsed)
    }

    /// Joins the tensor tables; the metadata that counts is the first shard's.
    fn join(path: PathBuf, parsed: Vec<(Header, FileBytes)>) -> Result<Self, GgufError> {
        let mut gguf = Gguf {
            path,
            metadata: Vec::new(),
            key_index: HashMap::new(),
            tensors: Vec::new(),
            tensor_index: HashMap::new(),
            shards: Vec::with_capacity(parsed.len()),
        };
        for (index, (header, bytes)) in parsed.into_iter().enumerate() {
            if index == 0 {
                gguf.metadata = header.metadata;
                gguf.key_index = header.key_index;
            }
            for tensor in header.tensors {
                let place = gguf.tensors.len();
                if gguf.tensor_index.insert(tensor.name.clone(), place).is_some() {
                    return Err(GgufFault::DuplicateTensor { tensor: tensor.name }.in_file(&gguf.path));
                }
                gguf.tensors.push(tensor);
            }
            gguf.shards.push(bytes);
        }
        Ok(gguf)
    }

    fn check_is_whole(self) -> Result<Self, GgufError> {
        match self.optional_u32("split.count")? {
            Some(count) if count > 1 => Err(self.fault(GgufFault::ShardName { count })),
            _ => Ok(self),
        }
    }

    /// The file that was opened, or the first shard.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keys and values in the file's order.
    #[must_use]
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.key_index.get(key).map(|&index| &self.metadata[index].1)
    }

    /// The value of a key as a `T`, or `None` when the file lacks the key.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    pub fn get_optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|mismatch| self.fault(mismatch.of_key(key, value, T::WANTED)))
    }

    /// The value of a key as a `T`.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], [`GgufFault::WrongType`] or [`GgufFault::OutOfRange`].
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.get_optional(key)?
            .ok_or_else(|| self.fault(GgufFault::MissingKey { key: key.to_owned(), wanted: T::WANTED }))
    }

    /// The tensors in the file's order, shard after shard.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's entry in the table.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&index| &self.tensors[index])
    }

    /// A tensor as a matrix on the mapped bytes: its innermost dimension is the columns, all others together the rows.
    ///
    /// # Errors
    /// [`GgufFault::NoSuchTensor`], [`GgufFault::UnknownFormat`] when this build cannot compute with its type.
    pub fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let tensor =
            self.tensor(name).ok_or_else(|| self.fault(GgufFault::NoSuchTensor { tensor: name.to_owned() }))?;
        let format = Format::from_ggml(tensor.ggml_type).ok_or_else(|| {
            self.fault(GgufFault::UnknownFormat { tensor: name.to_owned(), ggml_type: tensor.ggml_type })
        })?;
        let outside = || self.fault(GgufFault::HugeTensor { tensor: name.to_owned() });
        let rows = usize::try_from(tensor.n_rows()).map_err(|_| outside())?;
        let columns = usize::try_from(tensor.n_columns()).map_err(|_| outside())?;
        let bytes = tensor
            .byte_range()
            .and_then(|range| SharedBytes::new(Arc::clone(&self.shards[tensor.shard]), range))
            .ok_or_else(outside)?;
        Weight::new(name, format, rows, columns, bytes).map_err(|error| self.fault(GgufFault::Weight(error)))
    }

    /// An error about this file, for the modules that interpret it.
    #[must_use]
    pub fn fault(&self, fault: GgufFault) -> GgufError {
        fault.in_file(&self.path)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_keys, n_tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "{} ({n_keys} keys, {n_tensors} tensors)", self.path.display())
    }
}

/// [`Gguf::get`] and [`Gguf::get_optional`] by the name of the type wanted; errors as theirs.
#[allow(clippy::missing_errors_doc)]
impl Gguf {
    /// An integer of any width that fits.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::u32`], or `None` without the key.
    pub fn optional_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get_optional(key)
    }

    /// An integer of any width that fits.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::u64`], or `None` without the key.
    pub fn optional_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get_optional(key)
    }

    /// A number with a fraction.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::f32`], or `None` without the key.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get_optional(key)
    }

    /// True or false.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::bool`], or `None` without the key.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get_optional(key)
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::str`], or `None` without the key.
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.get_optional(key)
    }

    /// A list of texts, read from the mapped file while it is iterated.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        self.get(key)
    }

    /// A list of integers of any width.
    pub fn integers(&self, key: &str) -> Result<Vec<i64>, GgufError> {
        self.get(key)
    }

    /// As [`Gguf::integers`], or `None` without the key.
    pub fn optional_integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.get_optional(key)
    }

    /// A list of numbers with fractions.
    pub fn floats(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        self.get(key)
    }

    /// A list of truth values.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        self.get(key)
    }
}

/// Maps a file read-only.
fn map(path: &Path) -> std::io::Result<FileBytes> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::other("it is a directory"));
    }
    // SAFETY: the map is read-only and private to us. Nothing here relies on the bytes staying the same between two
    // reads: ranges were checked against the map's own length, and text is checked again each time it is read. Another
    // process that truncates the file while it is open takes the pages away; that is the accepted risk of mapping.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Arc::new(MappedFile(map)))
}

/// A file in memory, read-only.
struct MappedFile(memmap2::Mmap);

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Bytes for MappedFile {
    fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: pages of a read-only map of a file are read from it again when they are next looked at.
            let advised =
                unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
            // Advice that the system does not take costs memory, nothing else.
            let _ = advised;
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    fn prefetch(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            // Advice that the system does not take costs time, nothing else.
            let _ = self.0.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
