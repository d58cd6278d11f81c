//! One file's bytes to its metadata and its table of tensors, trusting nothing.

use std::collections::HashMap;
use std::fmt::Arguments;
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::SharedBytes;

use super::FileBytes;
use super::error::GgufFault;
use super::value::{Array, Value, ValueType};

/// The specification's limit on a key, applied to tensor names as well.
const NAME_BYTES_MAX: u64 = 65_535;
/// Where tensors start when the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The least a key takes: length, one byte of name, type, one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// The least a tensor's entry takes: length of name, number of dimensions, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// A tensor's entry in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Dimensions as ggml orders them, innermost first; empty for a scalar.
    pub dims: Vec<u64>,
    /// ggml's number for how its values are stored; it may be one that we do not know.
    pub ggml_type: u32,
    /// The shard that holds it, from 0.
    pub shard: usize,
    /// Where it starts in its shard's file, in bytes.
    pub start: u64,
    /// How many bytes it takes; `None` when its type is not known.
    pub n_bytes: Option<u64>,
}

impl TensorInfo {
    /// How values are stored, when it is a format that we compute with.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        Format::from_ggml(self.ggml_type)
    }

    /// Number of values.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The innermost dimension: values in a row.
    #[must_use]
    pub fn n_columns(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// All dimensions but the innermost, folded.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// Bytes that it takes, as far as its type is known.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.n_bytes.unwrap_or(0)
    }

    /// Its bytes in its shard's file.
    pub(super) fn byte_range(&self) -> Option<Range<usize>> {
        let start = usize::try_from(self.start).ok()?;
        let length = usize::try_from(self.n_bytes?).ok()?;
        Some(start..start.checked_add(length)?)
    }
}

/// What one file says before its tensors' bytes.
pub(super) struct Header {
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) key_index: HashMap<String, usize>,
    pub(super) tensors: Vec<TensorInfo>,
}

impl Header {
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.key_index.get(key).map(|&index| &self.metadata[index].1)
    }
}

/// Reads and checks the header of shard `shard`.
pub(super) fn parse(file: &FileBytes, shard: usize) -> Result<Header, GgufFault> {
    let mut reader = Reader { file, bytes: (**file).as_ref(), position: 0 };
    reader.magic_and_version()?;
    let n_tensors = reader.u64(format_args!("the number of tensors"))?;
    let n_keys = reader.u64(format_args!("the number of keys"))?;

    let (metadata, key_index) = reader.metadata(n_keys)?;
    let mut header = Header { metadata, key_index, tensors: Vec::new() };
    let alignment = alignment(&header)?;
    header.tensors = reader.tensors(n_tensors, shard)?;

    // Offsets in the table count from the first aligned byte after it.
    let data_start = (reader.position as u64).next_multiple_of(alignment);
    for tensor in &mut header.tensors {
        place(tensor, data_start, alignment, reader.bytes.len())?;
    }
    Ok(header)
}

fn alignment(header: &Header) -> Result<u64, GgufFault> {
    match header.value("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment.into()),
        Some(other) => Err(GgufFault::Alignment { found: format!("{other:?}") }),
    }
}

/// Turns a tensor's offset from the start of the data into one from the start of the file, and checks its extent.
fn place(tensor: &mut TensorInfo, data_start: u64, alignment: u64, file_bytes: usize) -> Result<(), GgufFault> {
    let name = || tensor.name.clone();
    if !tensor.start.is_multiple_of(alignment) {
        return Err(GgufFault::Misaligned { tensor: name(), offset: tensor.start, alignment });
    }
    // An empty dimension must not hide that the others overflow, for they are multiplied in more than one order.
    tensor
        .dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)))
        .ok_or_else(|| GgufFault::HugeTensor { tensor: name() })?;
    if let Some(format) = tensor.format() {
        let (block, columns) = (format.block_len() as u64, tensor.n_columns());
        if !columns.is_multiple_of(block) {
            return Err(GgufFault::RaggedTensor { tensor: name(), columns, block });
        }
        let n_bytes = (tensor.n_elements() / block).checked_mul(format.block_bytes() as u64);
        tensor.n_bytes = Some(n_bytes.ok_or_else(|| GgufFault::HugeTensor { tensor: name() })?);
    }
    let start = data_start.checked_add(tensor.start);
    let end = start.and_then(|start| start.checked_add(tensor.n_bytes.unwrap_or(0)));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(GgufFault::HugeTensor { tensor: name() });
    };
    if end > file_bytes as u64 {
        return Err(GgufFault::TensorOutside { tensor: name(), end, file_bytes });
    }
    tensor.start = start;
    Ok(())
}

/// A position in a file; every read is checked against what is left.
struct Reader<'a> {
    file: &'a FileBytes,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn available(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `length` bytes; `what` names them in the error.
    fn take(&mut self, length: u64, what: Arguments<'_>) -> Result<&'a [u8], GgufFault> {
        let truncated = || GgufFault::Truncated {
            what: what.to_string(),
            offset: self.position,
            needed: length,
            available: self.available(),
        };
        let end = usize::try_from(length).ok().and_then(|length| self.position.checked_add(length));
        let taken = end.and_then(|end| self.bytes.get(self.position..end)).ok_or_else(truncated)?;
        self.position += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], GgufFault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: Arguments<'_>) -> Result<u32, GgufFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: Arguments<'_>) -> Result<u64, GgufFault> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: Arguments<'_>) -> Result<&'a str, GgufFault> {
        let length = self.u64(what)?;
        let offset = self.position;
        str::from_utf8(self.take(length, what)?).map_err(|_| GgufFault::NotUtf8 { what: what.to_string(), offset })
    }

    /// The name of a key or tensor.
    fn name(&mut self, what: Arguments<'_>) -> Result<String, GgufFault> {
        let name = self.string(what)?;
        let length = name.len() as u64;
        if length > NAME_BYTES_MAX {
            return Err(GgufFault::LongName { what: what.to_string(), length, most: NAME_BYTES_MAX });
        }
        Ok(name.to_owned())
    }

    /// A stated count as a number of items that the rest of the file has room for.
    fn count(&self, count: u64, bytes_min: u64, what: Arguments<'_>) -> Result<usize, GgufFault> {
        let absurd = || GgufFault::AbsurdCount { what: what.to_string(), count, available: self.available() };
        if count > self.available() as u64 / bytes_min {
            return Err(absurd());
        }
        usize::try_from(count).map_err(|_| absurd())
    }

    fn magic_and_version(&mut self) -> Result<(), GgufFault> {
        if !self.bytes.starts_with(b"GGUF") {
            return Err(GgufFault::NotGguf);
        }
        self.position = 4;
        match self.u32(format_args!("the version"))? {
            2 | 3 => Ok(()),
            version if (1..=3).contains(&version.swap_bytes()) => Err(GgufFault::BigEndian),
            version => Err(GgufFault::Version(version)),
        }
    }

    #[allow(clippy::type_complexity)]
    fn metadata(&mut self, n_keys: u64) -> Result<(Vec<(String, Value)>, HashMap<String, usize>), GgufFault> {
        let n_keys = self.count(n_keys, KEY_BYTES_MIN, format_args!("keys"))?;
        let mut metadata = Vec::new();
        let mut key_index = HashMap::new();
        for index in 0..n_keys {
            let key = self.name(format_args!("the name of key {index}"))?;
            let value = self.value(&key)?;
            if key_index.insert(key.clone(), index).is_some() {
                return Err(GgufFault::DuplicateKey { key });
            }
            metadata.push((key, value));
        }
        Ok((metadata, key_index))
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufFault> {
        let type_id = self.u32(format_args!("the type of key {key:?}"))?;
        ValueType::from_id(type_id).ok_or_else(|| GgufFault::UnknownValueType { key: key.to_owned(), type_id })
    }

    fn value(&mut self, key: &str) -> Result<Value, GgufFault> {
        let value_type = self.value_type(key)?;
        match value_type {
            ValueType::String => Ok(Value::String(self.string(format_args!("the value of key {key:?}"))?.into())),
            ValueType::Array => self.array_value(key).map(Value::Array),
            _ => self.fixed_value(key, value_type),
        }
    }

    fn fixed_value(&mut self, key: &str, value_type: ValueType) -> Result<Value, GgufFault> {
        let length = value_type.fixed_bytes().expect("strings and arrays were handled") as u64;
        let bytes = self.take(length, format_args!("the value of key {key:?}"))?;
        if value_type == ValueType::Bool {
            check_bools(key, bytes)?;
        }
        Ok(Value::from_fixed(value_type, bytes).expect("exactly the type's bytes were taken"))
    }

    /// Walks over an array to check it, and leaves the elements where they are.
    fn array_value(&mut self, key: &str) -> Result<Array, GgufFault> {
        let element = self.value_type(key)?;
        let stated = self.u64(format_args!("the length of key {key:?}"))?;
        let what = format_args!("elements for key {key:?}");
        let length_prefix = 8;
        let len = self.count(stated, element.fixed_bytes().unwrap_or(length_prefix) as u64, what)?;
        let start = self.position;
        match element.fixed_bytes() {
            Some(size) => {
                let bytes = self.take((len * size) as u64, what)?;
                if element == ValueType::Bool {
                    check_bools(key, bytes)?;
                }
            }
            None if element == ValueType::Array => return Err(GgufFault::NestedArray { key: key.to_owned() }),
            None => {
                for index in 0..len {
                    self.string(format_args!("element {index} of key {key:?}"))?;
                }
            }
        }
        let bytes = SharedBytes::new(Arc::clone(self.file), start..self.position)
            .expect("the reader has walked over these bytes");
        Ok(Array { element, len, bytes })
    }

    /// The table of tensors, their offsets still relative to the data.
    fn tensors(&mut self, n_tensors: u64, shard: usize) -> Result<Vec<TensorInfo>, GgufFault> {
        const DIMS_MAX: u32 = 4;
        let n_tensors = self.count(n_tensors, TENSOR_BYTES_MIN, format_args!("tensors"))?;
        let mut tensors = Vec::new();
        for index in 0..n_tensors {
            let name = self.name(format_args!("the name of tensor {index}"))?;
            let what = format_args!("the entry of tensor {name:?}");
            let n_dims = self.u32(what)?;
            if n_dims > DIMS_MAX {
                return Err(GgufFault::TooManyDimensions { tensor: name, n_dims });
            }
            let dims = (0..n_dims).map(|_| self.u64(what)).collect::<Result<Vec<u64>, _>>()?;
            let ggml_type = self.u32(what)?;
            let start = self.u64(what)?;
            tensors.push(TensorInfo { name, dims, ggml_type, shard, start, n_bytes: None });
        }
        Ok(tensors)
    }
}

fn check_bools(key: &str, bytes: &[u8]) -> Result<(), GgufFault> {
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(&byte) => Err(GgufFault::NotBool { key: key.to_owned(), byte }),
        None => Ok(()),
    }
}
