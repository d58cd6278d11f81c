//! GGUF: a model in one file or in numbered shards. Each file holds metadata, then a table of tensors, then their bytes.
//!
//! Files are mapped, never read whole. Every count, length, offset and type in a file is checked against the file's size before
//! it is used or memory is allocated for it. A truncated, damaged or hostile file gives an error, never a crash.
//!
//! - [`error`]: what can be wrong with a file
//! - [`value`]: typed metadata
//! - [`metadata`]: the value of a key as a type
//! - `conversions`: values made from numbers and text
//! - [`header`]: parses the metadata and tensor table of one file
//! - [`shards`]: the files of a model in shards
//! - [`mod@write`]: writes GGUF files
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

mod conversions;
pub mod error;
pub mod header;
pub mod metadata;
mod shards;
mod type_name;
pub mod value;
pub mod write;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes, Weight};

pub use error::{GgufError, GgufFault};
pub use header::TensorInfo;
use header::{FileBytes, Header, parse};
pub use metadata::Metadata;
pub use value::{Strings, Value};

use crate::mapped_file::{MappedFile, ModelFiles};

/// ggml's number of 32-bit integers, which no kernel computes with.
pub const GGML_I32: u32 = 26;

/// ggml's number of 64-bit integers.
const GGML_I64: u32 = 27;

/// An open model: its metadata, its table of tensors, and their bytes.
pub struct Gguf {
    path: PathBuf,
    metadata: Vec<(String, Value)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
    shards: Vec<FileBytes>,
    /// Bytes of each shard's metadata and table of tensors.
    header_bytes: Vec<usize>,
    /// The mapped files; none for a model in memory.
    files: ModelFiles,
}

impl Gguf {
    /// Opens a file. Any shard of a model in shards (`name-00001-of-00003.gguf`) opens the whole model.
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
        gguf.check_tensor_count()
    }

    /// Parses one file that is already in memory. Errors show `name` as its path.
    ///
    /// # Errors
    /// [`GgufError`] as for [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_shared(name, Arc::new(bytes))
    }

    /// [`Gguf::from_bytes`] for bytes with several owners.
    ///
    /// # Errors
    /// [`GgufError`] as for [`Gguf::open`].
    pub fn from_shared(name: &str, bytes: Arc<dyn Bytes>) -> Result<Self, GgufError> {
        let path = PathBuf::from(name);
        let header = parse(&bytes, 0).map_err(|fault| fault.in_file(&path))?;
        Self::join(path, vec![(header, bytes)], ModelFiles::default())?.check_is_whole()
    }

    fn parse_shards(paths: &[PathBuf]) -> Result<Self, GgufError> {
        let open = |path: &PathBuf| {
            MappedFile::open(path).map(Arc::new).map_err(|error| GgufFault::Unreadable(error).in_file(path))
        };
        let mapped = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let files = ModelFiles::new(mapped.iter().map(|mapped| &**mapped));
        let parsed =
            Self::parse_mapped(paths, mapped).and_then(|parsed| Self::join(paths[0].clone(), parsed, files.clone()));
        // What was parsed of a file that changed meanwhile, or the error found in it, means nothing.
        files.check().map_err(|change| GgufFault::Changed(change.change).in_file(&change.path))?;
        parsed
    }

    fn parse_mapped(paths: &[PathBuf], mapped: Vec<Arc<MappedFile>>) -> Result<Vec<(Header, FileBytes)>, GgufError> {
        let count = paths.len();
        let parse_one = |(index, (path, bytes)): (usize, (&PathBuf, Arc<MappedFile>))| {
            let bytes: FileBytes = bytes;
            let header = parse(&bytes, index).map_err(|fault| fault.in_file(path))?;
            if count > 1 {
                shards::check_position(&header, index, count).map_err(|fault| fault.in_file(path))?;
            }
            Ok((header, bytes))
        };
        paths.iter().zip(mapped).enumerate().map(parse_one).collect()
    }

    /// Joins the tensor tables of all shards. The metadata is that of the first shard.
    fn join(path: PathBuf, parsed: Vec<(Header, FileBytes)>, files: ModelFiles) -> Result<Self, GgufError> {
        let mut gguf = Gguf {
            path,
            metadata: Vec::new(),
            key_index: HashMap::new(),
            tensors: Vec::new(),
            tensor_index: HashMap::new(),
            shards: Vec::with_capacity(parsed.len()),
            header_bytes: Vec::with_capacity(parsed.len()),
            files,
        };
        for (index, (header, bytes)) in parsed.into_iter().enumerate() {
            if index == 0 {
                gguf.metadata = header.metadata;
                gguf.key_index = header.key_index;
            }
            for tensor in header.tensors {
                let index = gguf.tensors.len();
                if gguf.tensor_index.insert(tensor.name.clone(), index).is_some() {
                    return Err(GgufFault::DuplicateTensor { tensor: tensor.name }.in_file(&gguf.path));
                }
                gguf.tensors.push(tensor);
            }
            gguf.header_bytes.push(header.end);
            gguf.shards.push(bytes);
        }
        Ok(gguf)
    }

    /// Checks that all shards together hold as many tensors as the first one states.
    fn check_tensor_count(self) -> Result<Self, GgufError> {
        let found = self.tensors.len();
        match self.optional_u64("split.tensors.count")? {
            Some(stated) if stated != found as u64 => Err(self.fault(GgufFault::ShardTensors { found, stated })),
            _ => Ok(self),
        }
    }

    /// Refuses a single file that states to be one of several shards.
    fn check_is_whole(self) -> Result<Self, GgufError> {
        match self.optional_u32("split.count")? {
            Some(count) if count > 1 => Err(self.fault(GgufFault::ShardName { count })),
            _ => Ok(self),
        }
    }

    /// The mapped files; none for a model in memory.
    #[must_use]
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// Releases the memory of the metadata. It is read from the file again if it is needed.
    pub fn release_header(&self) {
        self.shards.iter().zip(&self.header_bytes).for_each(|(shard, end)| shard.release(0..*end));
    }

    /// The tensors in file order, shard after shard.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's entry in the table.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&index| &self.tensors[index])
    }

    /// A tensor as a matrix on the mapped bytes. The innermost dimension gives the columns, all others together the rows.
    ///
    /// # Errors
    /// [`GgufFault::NoSuchTensor`]; [`GgufFault::UnknownFormat`] when no kernel supports the tensor's type.
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
}

impl Gguf {
    /// The values of a tensor of 32-bit or 64-bit integers; `None` if there is no such tensor, or it is not in the file as a whole.
    #[must_use]
    pub fn integers_of(&self, name: &str) -> Option<Vec<i64>> {
        let tensor = self.tensor(name)?;
        let bytes = SharedBytes::new(Arc::clone(&self.shards[tensor.shard]), tensor.byte_range()?)?;
        let bytes = bytes.as_slice();
        match tensor.ggml_type {
            GGML_I32 => Some(bytes.as_chunks().0.iter().map(|value| i32::from_le_bytes(*value).into()).collect()),
            GGML_I64 => Some(bytes.as_chunks().0.iter().map(|value| i64::from_le_bytes(*value)).collect()),
            _ => None,
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_keys, n_tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "{} ({n_keys} keys, {n_tensors} tensors)", self.path.display())
    }
}

impl Metadata for Gguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.key_index.get(key).map(|&index| &self.metadata[index].1)
    }
}

#[cfg(test)]
mod tests;
