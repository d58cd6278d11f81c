//! The table of tensors at the start of a file.
//!
//! Source: <https://huggingface.co/docs/safetensors>. Eight bytes hold the length of the header, little-endian; the header is a
//! JSON object with the type, the shape and the byte range of each tensor after the header.

use std::ops::Range;

use serde::Deserialize;

use super::error::SafetensorsFault;
use super::unique_map::UniqueMap;

/// Most bytes of a header. The format has the same limit.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 8;

/// The type of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dtype {
    /// As the file names it: "BF16".
    pub name: &'static str,
    /// Bits of one value.
    pub bits: u8,
}

impl Dtype {
    /// The type with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Dtype> {
        DTYPES.iter().copied().find(|dtype| dtype.name == name)
    }
}

/// All types of the format.
const DTYPES: &[Dtype] = &[
    Dtype { name: "F32", bits: 32 },
    Dtype { name: "F16", bits: 16 },
    Dtype { name: "BF16", bits: 16 },
    Dtype { name: "F64", bits: 64 },
    Dtype { name: "F8_E4M3", bits: 8 },
    Dtype { name: "F8_E5M2", bits: 8 },
    Dtype { name: "F8_E8M0", bits: 8 },
    Dtype { name: "F8_E4M3FNUZ", bits: 8 },
    Dtype { name: "F8_E5M2FNUZ", bits: 8 },
    Dtype { name: "F6_E2M3", bits: 6 },
    Dtype { name: "F6_E3M2", bits: 6 },
    Dtype { name: "F4", bits: 4 },
    Dtype { name: "I64", bits: 64 },
    Dtype { name: "I32", bits: 32 },
    Dtype { name: "I16", bits: 16 },
    Dtype { name: "I8", bits: 8 },
    Dtype { name: "U64", bits: 64 },
    Dtype { name: "U32", bits: 32 },
    Dtype { name: "U16", bits: 16 },
    Dtype { name: "U8", bits: 8 },
    Dtype { name: "BOOL", bits: 8 },
    Dtype { name: "C64", bits: 64 },
];

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file that holds it, from 0.
    pub shard: usize,
    /// Its bytes in that file.
    pub range: Range<usize>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Parses the header of a file. Every length is checked against the file's before it is used.
pub(super) fn parse(bytes: &[u8], shard: usize) -> Result<Vec<Tensor>, SafetensorsFault> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsFault::NoHeader { bytes: bytes.len() });
    };
    let length = u64::from_le_bytes(*length);
    let truncated = || SafetensorsFault::TruncatedHeader { length, available: rest.len() };
    if length > rest.len() as u64 {
        return Err(truncated());
    }
    if length > MOST_HEADER_BYTES {
        return Err(SafetensorsFault::LongHeader { length, most: MOST_HEADER_BYTES });
    }
    let length = usize::try_from(length).map_err(|_| truncated())?;
    let UniqueMap(entries) =
        serde_json::from_slice::<UniqueMap<Entry>>(&rest[..length]).map_err(SafetensorsFault::BadHeader)?;
    let file = File { shard, data_start: 8 + length, bytes: bytes.len() };
    entries.into_iter().map(|(name, entry)| file.tensor(name, &entry)).collect()
}

/// The file of a header.
struct File {
    shard: usize,
    /// The first byte after the header.
    data_start: usize,
    bytes: usize,
}

impl File {
    fn tensor(&self, name: String, entry: &Entry) -> Result<Tensor, SafetensorsFault> {
        let Some(dtype) = Dtype::named(&entry.dtype) else {
            return Err(SafetensorsFault::UnknownType { tensor: name, dtype: entry.dtype.clone() });
        };
        if entry.shape.len() > MOST_DIMENSIONS {
            let dimensions = entry.shape.len();
            return Err(SafetensorsFault::TooManyDimensions { tensor: name, dimensions, most: MOST_DIMENSIONS });
        }
        let Some(expected) = bytes_of(&entry.shape, dtype) else {
            return Err(SafetensorsFault::HugeTensor { tensor: name });
        };
        let [start, end] = entry.data_offsets;
        let Some(found) = end.checked_sub(start) else {
            return Err(SafetensorsFault::BackwardRange { tensor: name });
        };
        if found != expected {
            return Err(SafetensorsFault::WrongSize { tensor: name, found, expected });
        }
        let in_file = |offset: u64| usize::try_from(offset).ok()?.checked_add(self.data_start);
        match (in_file(start), in_file(end)) {
            (Some(start), Some(end)) if end <= self.bytes => {
                let shape = entry.shape.iter().map(|&size| size as usize).collect();
                Ok(Tensor { name, dtype, shape, shard: self.shard, range: start..end })
            }
            _ => {
                let end = end.saturating_add(self.data_start as u64);
                Err(SafetensorsFault::TensorOutside { tensor: name, end, file_bytes: self.bytes })
            }
        }
    }
}

/// Bytes of a tensor; `None` when they exceed any memory. A dimension may be 0, but then the others must be sizes too.
fn bytes_of(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let values = shape.iter().try_fold(1u64, |product, size| product.checked_mul((*size).max(1)))?;
    let bits = values.checked_mul(u64::from(dtype.bits))?;
    let is_empty = shape.contains(&0);
    (bits < 1 << 62).then_some(if is_empty { 0 } else { bits.div_ceil(8) })
}
