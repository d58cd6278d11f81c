//! Writes tensors to one file, or to several with an index.
//!
//! A file is written tensor by tensor, so memory is bounded by the largest of them.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cuelight_shaders::weight::SharedBytes;
use serde_json::{Map, Value, json};

use super::header::Dtype;
use super::index::{INDEX, SINGLE};

/// The start of the bytes of tensors is a multiple of this.
const ALIGNMENT: usize = 8;

/// A tensor to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", .path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The files of a model that is written.
#[derive(Debug)]
pub struct NewFiles {
    tensors: Vec<NewTensor>,
    /// For each file its tensors, in the order of their bytes.
    files: Vec<Vec<usize>>,
}

impl NewTensor {
    /// Bytes of its values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.shape.iter().product::<usize>() * usize::from(self.dtype.bits)).div_ceil(8)
    }

    /// Tensors are sorted by this, so that each begins at a multiple of the size of its values.
    fn alignment_order(&self) -> usize {
        if self.bytes().is_multiple_of(ALIGNMENT) { 0 } else { usize::from(u8::MAX - self.dtype.bits) }
    }
}

impl NewFiles {
    /// Divides tensors among files of at most `most_bytes` bytes of values. A larger tensor gets a file of its own.
    #[must_use]
    pub fn new(tensors: Vec<NewTensor>, most_bytes: usize) -> Self {
        let (mut files, mut filled) = (vec![Vec::new()], 0);
        for (index, tensor) in tensors.iter().enumerate() {
            if filled > 0 && filled + tensor.bytes() > most_bytes {
                files.push(Vec::new());
                filled = 0;
            }
            filled += tensor.bytes();
            files.last_mut().into_iter().for_each(|file: &mut Vec<usize>| file.push(index));
        }
        files.iter_mut().for_each(|file| file.sort_by_key(|index| tensors[*index].alignment_order()));
        NewFiles { tensors, files }
    }

    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Writes all files to a folder, and the index if there are several. `values` gives the bytes of the tensor with an index.
    ///
    /// # Errors
    /// Those of `values`, and [`WriteError`] when a file cannot be written.
    pub fn write<E: From<WriteError>>(
        &self,
        folder: &Path,
        values: &mut dyn FnMut(usize) -> Result<SharedBytes, E>,
    ) -> Result<(), E> {
        for (number, file) in self.files.iter().enumerate() {
            self.write_file(&folder.join(self.file_name(number)), file, values)?;
        }
        if self.files.len() > 1 {
            let path = folder.join(INDEX);
            let written = File::create(&path).and_then(|mut file| {
                writeln!(file, "{:#}", self.index())?;
                file.sync_all()
            });
            written.map_err(|source| WriteError { path, source })?;
        }
        Ok(())
    }

    fn file_name(&self, number: usize) -> String {
        match self.files.len() {
            1 => SINGLE.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        }
    }

    fn write_file<E: From<WriteError>>(
        &self,
        path: &Path,
        tensors: &[usize],
        values: &mut dyn FnMut(usize) -> Result<SharedBytes, E>,
    ) -> Result<(), E> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let mut file = File::create(path).map_err(failed)?;
        file.write_all(&self.header(tensors)).map_err(failed)?;
        for index in tensors {
            let bytes = values(*index)?;
            let expected = self.tensors[*index].bytes();
            assert_eq!(bytes.as_slice().len(), expected, "bytes of {:?}", self.tensors[*index].name);
            file.write_all(bytes.as_slice()).map_err(failed)?;
            bytes.release();
        }
        Ok(file.sync_all().map_err(failed)?)
    }

    /// The length of a file's table of tensors, and the table.
    fn header(&self, tensors: &[usize]) -> Vec<u8> {
        let mut table = Map::new();
        table.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
        let mut start = 0;
        for tensor in tensors.iter().map(|index| &self.tensors[*index]) {
            let end = start + tensor.bytes();
            let entry = json!({ "dtype": tensor.dtype.name, "shape": tensor.shape, "data_offsets": [start, end] });
            table.insert(tensor.name.clone(), entry);
            start = end;
        }
        let mut text = Value::from(table).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
        [&(text.len() as u64).to_le_bytes(), &text[..]].concat()
    }

    fn index(&self) -> Value {
        let of_file = |(number, file): (usize, &Vec<usize>)| {
            let name = self.file_name(number);
            file.iter().map(|index| (self.tensors[*index].name.clone(), name.clone().into())).collect::<Vec<_>>()
        };
        let names: Map<String, Value> = self.files.iter().enumerate().flat_map(of_file).collect();
        json!({ "metadata": { "total_size": self.bytes() }, "weight_map": names })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Safetensors;
    use super::*;

    fn tensor(name: &str, dtype: &str, shape: &[usize]) -> NewTensor {
        NewTensor { name: name.to_owned(), dtype: Dtype::named(dtype).unwrap(), shape: shape.to_vec() }
    }

    /// Writes tensors whose bytes are their number, and reads them.
    fn check(most_bytes: usize) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [
            ("a", "I8", &[3, 5][..]),
            ("b", "BF16", &[3, 1]),
            ("c", "F32", &[7]),
            ("d", "F32", &[]),
            ("e", "I8", &[0]),
        ];
        let tensors: Vec<NewTensor> = tensors.map(|(name, dtype, shape)| tensor(name, dtype, shape)).to_vec();
        let files = NewFiles::new(tensors.clone(), most_bytes);
        let bytes = |index: usize| vec![u8::try_from(index).unwrap(); tensors[index].bytes()];
        files.write::<WriteError>(folder.path(), &mut |index| Ok(bytes(index).into())).unwrap();
        let read = Safetensors::open(folder.path()).unwrap();
        for (index, tensor) in tensors.iter().enumerate() {
            let found = read.tensor(&tensor.name).unwrap();
            assert_eq!((&found.shape, found.dtype), (&tensor.shape, tensor.dtype));
            assert_eq!(read.bytes(found).unwrap().as_slice(), bytes(index));
            assert!(found.range.start.is_multiple_of(usize::from(found.dtype.bits) / 8), "{found:?}");
        }
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn tensors_are_written_to_one_file_or_several_and_are_aligned() {
        assert_eq!(check(1000), [SINGLE]);
        let shards = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"];
        assert_eq!(check(21), [&shards[..], &["model-00003-of-00003.safetensors", INDEX]].concat());
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let files = NewFiles::new(vec![tensor("a", "F32", &[1])], 10);
        let written = files.write::<WriteError>(Path::new("/no/such"), &mut |_| Ok(vec![0; 4].into()));
        assert!(written.unwrap_err().to_string().contains("/no/such/model.safetensors"));
    }
}
