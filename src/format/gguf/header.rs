//! Parses one file's metadata and table of tensors. Nothing in the file is trusted.

use std::collections::HashMap;
use std::fmt::Arguments;
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes};

use super::error::GgufFault;
use super::type_name::{ggml_type_name, integer_bytes};
use super::value::{Array, Value, ValueType};

/// A file's bytes: a mapping, or a vector.
pub(super) type FileBytes = Arc<dyn Bytes>;

/// The specification's limit on a key, applied to tensor names as well.
const NAME_BYTES_MAX: u64 = 65_535;
/// Most bytes of metadata and tensor table. The largest real files have tens of megabytes: a vocabulary, its merges, and a copy of
/// the original tokenizer.
const HEADER_BYTES_MAX: usize = 512 << 20;
/// Most keys. Real files have tens.
const KEYS_MAX: u64 = 1 << 16;
/// Most tensors. Real files have thousands.
const TENSORS_MAX: u64 = 1 << 20;
/// Most elements of an array. The longest real arrays are merges, with half a million.
const ELEMENTS_MAX: u64 = 1 << 24;
/// The alignment of tensors in files that do not state one.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The fewest bytes of a key: length, one byte of name, type, one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// The fewest bytes of a tensor's entry: length of name, number of dimensions, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// A tensor's entry in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Dimensions as ggml orders them, innermost first; empty for a scalar.
    pub dims: Vec<u64>,
    /// ggml's number of its format, which may be unknown.
    pub ggml_type: u32,
    /// The shard that holds it, from 0.
    pub shard: usize,
    /// Its first byte in its shard's file.
    pub start: u64,
    /// Its size in bytes; `None` when its format is unknown.
    pub n_bytes: Option<u64>,
}

impl TensorInfo {
    /// Its format, when kernels support it.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        Format::from_ggml(self.ggml_type)
    }

    /// Number of values.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The innermost dimension: values per row.
    #[must_use]
    pub fn n_columns(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The product of all dimensions except the innermost.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// The name of its type.
    #[must_use]
    pub fn type_name(&self) -> String {
        match self.format() {
            Some(format) => format.name().to_owned(),
            None if integer_bytes(self.ggml_type).is_some() => ggml_type_name(self.ggml_type),
            None => format!("type {}", self.ggml_type),
        }
    }

    /// Its size in bytes; 0 when its format is unknown.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.n_bytes.unwrap_or(0)
    }

    /// Its byte range in its shard's file.
    pub(super) fn byte_range(&self) -> Option<Range<usize>> {
        let start = usize::try_from(self.start).ok()?;
        let length = usize::try_from(self.n_bytes?).ok()?;
        Some(start..start.checked_add(length)?)
    }
}

/// The content of one file before its tensors' bytes.
pub(super) struct Header {
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) key_index: HashMap<String, usize>,
    pub(super) tensors: Vec<TensorInfo>,
    /// The first byte after the table of tensors.
    pub(super) end: usize,
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
    let mut header = Header { metadata, key_index, tensors: Vec::new(), end: 0 };
    let alignment = alignment(&header)?;
    header.tensors = reader.tensors(n_tensors, shard)?;
    header.end = reader.position;

    // Offsets in the table count from the first aligned byte after it.
    let data_start = (reader.position as u64).next_multiple_of(alignment);
    for tensor in &mut header.tensors {
        locate(tensor, data_start, alignment, reader.bytes.len())?;
    }
    check_q2_blocks(&header.tensors, reader.bytes.len())?;
    Ok(header)
}

/// Refuses a file whose tensors of type Q2_0 have blocks of 128 values in 34 bytes. Older files of another project use the
/// type's number for them. They are shorter, so a tensor of blocks of 64 would overlap the next one, or the end of the file.
fn check_q2_blocks(tensors: &[TensorInfo], file_bytes: usize) -> Result<(), GgufFault> {
    let is_q2 = |tensor: &&TensorInfo| tensor.format() == Some(Format::Q2_0);
    if !tensors.iter().any(|tensor| is_q2(&tensor)) {
        return Ok(());
    }
    let mut starts: Vec<u64> = tensors.iter().map(|tensor| tensor.start).chain([file_bytes as u64]).collect();
    starts.sort_unstable();
    let overlaps = |tensor: &&TensorInfo| {
        let next = starts.partition_point(|start| *start <= tensor.start);
        starts.get(next).is_some_and(|next| tensor.start + tensor.bytes() > *next)
    };
    match tensors.iter().filter(is_q2).find(overlaps) {
        None => Ok(()),
        Some(tensor) => Err(GgufFault::OlderQ2 { tensor: tensor.name.clone() }),
    }
}

fn alignment(header: &Header) -> Result<u64, GgufFault> {
    match header.value("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment.into()),
        Some(other) => Err(GgufFault::Alignment { found: format!("{other:?}") }),
    }
}

/// Converts a tensor's offset in the data section to one in the file, and checks its extent.
fn locate(tensor: &mut TensorInfo, data_start: u64, alignment: u64, file_bytes: usize) -> Result<(), GgufFault> {
    let name = || tensor.name.clone();
    if !tensor.start.is_multiple_of(alignment) {
        return Err(GgufFault::Misaligned { tensor: name(), offset: tensor.start, alignment });
    }
    // A dimension of 0 must not hide that the others overflow: they are multiplied in more than one order.
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
    } else if let Some(size) = integer_bytes(tensor.ggml_type) {
        let n_bytes = tensor.n_elements().checked_mul(size);
        tensor.n_bytes = Some(n_bytes.ok_or_else(|| GgufFault::HugeTensor { tensor: name() })?);
    }
    let start = data_start.checked_add(tensor.start);
    let end = start.and_then(|start| start.checked_add(tensor.n_bytes.unwrap_or(0)));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(GgufFault::HugeTensor { tensor: name() });
    };
    // A tensor of this type may be shorter than stated: `check_q2_blocks` decides.
    let is_older = tensor.format() == Some(Format::Q2_0) && start + tensor.bytes() / 18 * 17 <= file_bytes as u64;
    if end > file_bytes as u64 && !is_older {
        return Err(GgufFault::TensorOutside { tensor: name(), end, file_bytes });
    }
    tensor.start = start;
    Ok(())
}

/// A position in a file. Every read is checked against the remaining bytes.
struct Reader<'a> {
    file: &'a FileBytes,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn available(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `length` bytes. `what` names them in the error.
    fn take(&mut self, length: u64, what: Arguments<'_>) -> Result<&'a [u8], GgufFault> {
        let truncated = || GgufFault::Truncated {
            what: what.to_string(),
            offset: self.position,
            needed: length,
            available: self.available(),
        };
        let end = usize::try_from(length).ok().and_then(|length| self.position.checked_add(length));
        if end.is_some_and(|end| end > HEADER_BYTES_MAX && end <= self.bytes.len()) {
            return Err(GgufFault::LongHeader { most: HEADER_BYTES_MAX });
        }
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

    /// Checks that there are at most `most` of something, and that the rest of the file can hold as many as it states, each of at
    /// least `bytes_min` bytes.
    fn count(&self, count: u64, most: u64, bytes_min: u64, what: Arguments<'_>) -> Result<usize, GgufFault> {
        let absurd = || GgufFault::AbsurdCount { what: what.to_string(), count, available: self.available() };
        if count > self.available() as u64 / bytes_min {
            return Err(absurd());
        }
        if count > most {
            return Err(GgufFault::TooMany { what: what.to_string(), count, most });
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
        let n_keys = self.count(n_keys, KEYS_MAX, KEY_BYTES_MIN, format_args!("keys"))?;
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

    /// Checks an array's elements. They stay in the file's bytes and are not copied.
    fn array_value(&mut self, key: &str) -> Result<Array, GgufFault> {
        let element = self.value_type(key)?;
        let stated = self.u64(format_args!("the length of key {key:?}"))?;
        let what = format_args!("elements for key {key:?}");
        let length_prefix = 8;
        let len = self.count(stated, ELEMENTS_MAX, element.fixed_bytes().unwrap_or(length_prefix) as u64, what)?;
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
        let bytes =
            SharedBytes::new(Arc::clone(self.file), start..self.position).expect("the reader has checked these bytes");
        Ok(Array { element, len, bytes })
    }

    /// The table of tensors, with offsets relative to the data section.
    fn tensors(&mut self, n_tensors: u64, shard: usize) -> Result<Vec<TensorInfo>, GgufFault> {
        const DIMS_MAX: u32 = 4;
        let n_tensors = self.count(n_tensors, TENSORS_MAX, TENSOR_BYTES_MIN, format_args!("tensors"))?;
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
            if Format::from_ggml(ggml_type).is_some_and(|format| !format.is_in_gguf()) {
                return Err(GgufFault::UnknownFormat { tensor: name, ggml_type });
            }
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
