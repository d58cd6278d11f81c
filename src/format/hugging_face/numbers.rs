//! Tensors of integers, which become 32-bit integers as in GGUF files.

use std::sync::{Arc, OnceLock};

use cuelight_shaders::weight::{Bytes, SharedBytes};

use crate::format::gguf::{GGML_I32, TensorInfo};
use crate::format::safetensors::{Safetensors, Tensor};

/// The tensor `name` with the integers of a stored one; `None` for tensors of other types.
pub(super) fn entry(name: &str, files: &Safetensors, tensor: &Tensor) -> Option<(TensorInfo, SharedBytes)> {
    let is_wide = match tensor.dtype.name {
        "I64" => true,
        "I32" => false,
        _ => return None,
    };
    let stored = files.bytes(tensor)?;
    let byte_len = stored.as_slice().len() / if is_wide { 2 } else { 1 };
    let bytes = match is_wide {
        true => SharedBytes::new(Arc::new(Narrowed { stored, byte_len, made: OnceLock::new() }), 0..byte_len)?,
        false => stored,
    };
    let dims = tensor.shape.iter().rev().map(|&size| size as u64).collect();
    let (shard, start, n_bytes) = (tensor.shard, tensor.range.start as u64, Some(byte_len as u64));
    Some((TensorInfo { name: name.to_owned(), dims, ggml_type: GGML_I32, shard, start, n_bytes }, bytes))
}

/// 64-bit integers as 32-bit ones, made when they are first read. Those that do not fit become -1, which is no valid number.
struct Narrowed {
    stored: SharedBytes,
    byte_len: usize,
    made: OnceLock<Vec<u8>>,
}

impl Narrowed {
    fn make(&self) -> Vec<u8> {
        let wide = self.stored.as_slice().as_chunks().0.iter().map(|value| i64::from_le_bytes(*value));
        wide.flat_map(|value| i32::try_from(value).unwrap_or(-1).to_le_bytes()).collect()
    }
}

impl AsRef<[u8]> for Narrowed {
    fn as_ref(&self) -> &[u8] {
        self.made.get_or_init(|| self.make())
    }
}

impl Bytes for Narrowed {
    fn byte_len(&self) -> usize {
        self.byte_len
    }
}
