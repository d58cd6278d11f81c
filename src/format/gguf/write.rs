//! Writes GGUF files: whole files in memory for tests, and the headers of large files.
//!
//! The tensors of a large file are written by the caller. [`GgufBuilder::space`] reserves bytes for each tensor, and
//! [`GgufBuilder::header`] returns their ranges.

use std::ops::Range;

use super::value::{Value, ValueType};

/// A file under construction. [`GgufBuilder::build`] computes sizes and offsets.
///
/// ```
/// use cuelight_engine::format::gguf::{Gguf, Metadata, write::GgufBuilder};
///
/// let bytes = GgufBuilder::new().key("llama.block_count", 2u32).build();
/// assert_eq!(Gguf::from_bytes("tiny.gguf", bytes)?.u32("llama.block_count")?, 2);
/// # Ok::<(), cuelight_engine::format::gguf::GgufError>(())
/// ```
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    version: u32,
    alignment: usize,
    n_keys: u64,
    keys: Vec<u8>,
    tensors: Vec<NewTensor>,
}

#[derive(Debug, Clone)]
struct NewTensor {
    name: String,
    dims: Vec<u64>,
    ggml_type: u32,
    /// Its size in the file, in bytes.
    n_bytes: usize,
    /// Its bytes; empty when the caller writes them.
    bytes: Vec<u8>,
}

/// A file without the bytes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Everything before the first tensor.
    pub bytes: Vec<u8>,
    /// The byte range of each tensor in the file, in the order of addition. Bytes between ranges are zero.
    pub ranges: Vec<Range<usize>>,
    /// Size of the whole file in bytes.
    pub file_bytes: usize,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        GgufBuilder { version: 3, alignment: 32, n_keys: 0, keys: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufBuilder {
    /// An empty file of version 3.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version. Versions 2 and 3 have the same layout.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the alignment of tensors, a power of two, and adds its key.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.key("general.alignment", alignment)
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: &str, value: impl ToValue) -> Self {
        self.n_keys += 1;
        put_string(&mut self.keys, key);
        value.put_typed(&mut self.keys);
        self
    }

    /// Adds a tensor. `dims` are innermost first; `bytes` are in the format that ggml numbers `ggml_type`.
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], ggml_type: u32, bytes: Vec<u8>) -> Self {
        let n_bytes = bytes.len();
        self.tensors.push(NewTensor { name: name.to_owned(), dims: dims.to_vec(), ggml_type, n_bytes, bytes });
        self
    }

    /// Adds a tensor of `n_bytes` bytes for the caller to write. [`GgufBuilder::build`] fills them with zeros.
    #[must_use]
    pub fn space(mut self, name: &str, dims: &[u64], ggml_type: u32, n_bytes: usize) -> Self {
        let (name, dims, bytes) = (name.to_owned(), dims.to_vec(), Vec::new());
        self.tensors.push(NewTensor { name, dims, ggml_type, n_bytes, bytes });
        self
    }

    /// Adds a float32 tensor.
    #[must_use]
    pub fn tensor_f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dims, 0, bytes)
    }

    /// The whole file.
    #[must_use]
    pub fn build(self) -> Vec<u8> {
        let header = self.header();
        let mut file = header.bytes;
        file.resize(header.file_bytes, 0);
        for (tensor, range) in self.tensors.iter().zip(header.ranges) {
            file[range][..tensor.bytes.len()].copy_from_slice(&tensor.bytes);
        }
        file
    }

    /// The file without its tensors' bytes, and the ranges of those.
    #[must_use]
    pub fn header(&self) -> FileHeader {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.n_keys.to_le_bytes());
        bytes.extend(&self.keys);
        let mut offset = 0;
        let mut offsets = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            put_string(&mut bytes, &tensor.name);
            #[allow(clippy::cast_possible_truncation)] // Tests may add too many dimensions, but not 2^32.
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            bytes.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(tensor.ggml_type.to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offsets.push(offset);
            offset += tensor.n_bytes.next_multiple_of(self.alignment);
        }
        let data_start = bytes.len().next_multiple_of(self.alignment);
        let start_and_length = offsets.iter().zip(&self.tensors);
        let ranges: Vec<Range<usize>> = start_and_length
            .map(|(offset, tensor)| data_start + offset..data_start + offset + tensor.n_bytes)
            .collect();
        // The format asks for padding after the last tensor too; llama.cpp checks it when it reads all bytes at once.
        let file_bytes = ranges.last().map_or(bytes.len(), |range| range.end.next_multiple_of(self.alignment));
        FileHeader { bytes, ranges, file_bytes }
    }
}

/// A type that a key can be set to.
pub trait ToValue {
    /// The type in the file.
    fn value_type(&self) -> ValueType;

    /// Appends the value's bytes, without its type.
    fn put(&self, out: &mut Vec<u8>);

    /// Appends the type and the bytes.
    fn put_typed(&self, out: &mut Vec<u8>) {
        out.extend(self.value_type().id().to_le_bytes());
        self.put(out);
    }
}

macro_rules! number_to_value {
    ($($number:ty => $value_type:ident),*) => {$(
        impl ToValue for $number {
            fn value_type(&self) -> ValueType {
                ValueType::$value_type
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}

number_to_value!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, u64 => U64, i64 => I64, f64 => F64);

impl ToValue for bool {
    fn value_type(&self) -> ValueType {
        ValueType::Bool
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl ToValue for &str {
    fn value_type(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_string(out, self);
    }
}

impl ToValue for String {
    fn value_type(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_string(out, self);
    }
}

impl<T: ToValue> ToValue for &[T] {
    fn value_type(&self) -> ValueType {
        ValueType::Array
    }

    /// Writes an empty array as an array of strings for every `T`.
    fn put(&self, out: &mut Vec<u8>) {
        let element = self.first().map_or(ValueType::String, ToValue::value_type);
        out.extend(element.id().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        for item in *self {
            item.put(out);
        }
    }
}

impl<T: ToValue> ToValue for Vec<T> {
    fn value_type(&self) -> ValueType {
        ValueType::Array
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
}

/// A value that was read from a file.
impl ToValue for &Value {
    fn value_type(&self) -> ValueType {
        Value::value_type(self)
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Value::U8(value) => value.put(out),
            Value::I8(value) => value.put(out),
            Value::U16(value) => value.put(out),
            Value::I16(value) => value.put(out),
            Value::U32(value) => value.put(out),
            Value::I32(value) => value.put(out),
            Value::F32(value) => value.put(out),
            Value::Bool(value) => value.put(out),
            Value::String(text) => put_string(out, text),
            Value::Array(array) => array.put(out),
            Value::U64(value) => value.put(out),
            Value::I64(value) => value.put(out),
            Value::F64(value) => value.put(out),
        }
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
