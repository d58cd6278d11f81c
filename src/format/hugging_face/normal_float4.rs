//! Weights that bitsandbytes has quantized to 4-bit normal floats (NF4). They become blocks with the same codes and scales.
//!
//! | tensor | |
//! |---|---|
//! | `weight` [values / 2, 1] | two codes in a byte, the first in its high bits |
//! | `weight.absmax` [values / 64] | scales in float32; or in 8 bits, if they are quantized too |
//! | `weight.quant_map` `[16]` | the number of each code |
//! | `weight.nested_absmax` [scales / 256], `weight.nested_quant_map` `[256]` | of scales in 8 bits: scales, and the number of each code |
//! | `weight.quant_state.bitsandbytes__nf4` | JSON: the shape of the matrix, sizes of blocks, and `nested_offset`, which is added to scales |
//!
//! A value is `quant_map[code] * absmax`. A scale in 8 bits is `nested_quant_map[code] * nested_absmax + nested_offset`,
//! computed in float32 as the package does.
//!
//! Source: the package `bitsandbytes` (`QuantState`).

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::nf4::CODEBOOK;
use cuelight_shaders::weight::SharedBytes;
use serde_json::Value;

use super::derived::Unpack;
use super::error::HuggingFaceFault;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values with one scale.
const BLOCK: usize = 64;

/// Scales with one scale of their own.
const NESTED_BLOCK: usize = 256;

/// What follows the name of a matrix in the names of its other tensors.
const SCALES: &str = ".absmax";
const NUMBERS: &str = ".quant_map";
const NESTED_SCALES: &str = ".nested_absmax";
const NESTED_NUMBERS: &str = ".nested_quant_map";
const STATE: &str = ".quant_state.bitsandbytes__nf4";

/// Most bytes of a state. Real ones have some hundred.
const MOST_STATE_BYTES: usize = 1 << 16;

/// Codes of 4 bits with a codebook of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NormalFloat4;

impl Scheme for NormalFloat4 {
    fn needed(&self) -> &'static str {
        "codes of type U8 for a matrix with a multiple of 64 inputs, scales of type F32, or U8 with scales of their own, for each 64 \
         values, the numbers of NF4, and a state with the shape of the matrix"
    }

    fn is_part(&self, _: &Safetensors, name: &str) -> bool {
        [SCALES, NUMBERS, NESTED_SCALES, NESTED_NUMBERS, STATE].iter().any(|end| name.ends_with(end))
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let name = tensor.name.clone();
        let is_packed = tensor.dtype.name == "U8" && name.ends_with(".weight");
        is_packed.then(|| Codes { scales: vec![format!("{name}{SCALES}")], name })
    }

    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        Ok(fitting(files, codes, scales))
    }
}

/// The packed matrix; `None` when its tensors do not fit one another.
fn fitting(files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Option<Packed> {
    let bytes = |end: &str, dtype: &str| {
        let tensor = files.tensor(&format!("{}{end}", codes.name)).filter(|tensor| tensor.dtype.name == dtype)?;
        files.bytes(tensor)
    };
    let state = bytes(STATE, "U8").filter(|state| state.as_slice().len() <= MOST_STATE_BYTES)?;
    let state: Value = serde_json::from_slice(state.as_slice()).ok()?;
    let [outputs, inputs] = shape(&state)?;
    let values = outputs.checked_mul(inputs)?;
    let count = scales.shape.iter().product::<usize>();
    let numbers = bytes(NUMBERS, "F32")?;
    let is_known = floats(numbers.as_slice()).map(f32::to_bits).eq(CODEBOOK.map(f32::to_bits));
    let codes = files.bytes(codes).filter(|codes| codes.as_slice().len().checked_mul(2) == Some(values))?;
    if !is_known || count.checked_mul(BLOCK) != Some(values) {
        return None;
    }
    let nested = match scales.dtype.name {
        "F32" => None,
        "U8" => Some(Nested {
            numbers: bytes(NESTED_NUMBERS, "F32").filter(|numbers| numbers.as_slice().len() == 4 * NESTED_BLOCK)?,
            scales: bytes(NESTED_SCALES, "F32")
                .filter(|scales| scales.as_slice().len() == 4 * count.div_ceil(NESTED_BLOCK))?,
            offset: offset(&state)?,
        }),
        _ => return None,
    };
    let source = Matrix { codes, scales: files.bytes(scales)?, nested };
    Some(Packed::new(Format::NF4, vec![outputs, inputs], source))
}

/// The shape that a state has; `None` for another than that of a matrix of whole blocks, and for blocks of other sizes.
fn shape(state: &Value) -> Option<[usize; 2]> {
    let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
    let is = |key: &str, expected: usize| state.get(key).is_none_or(|value| size(value) == Some(expected));
    let [outputs, inputs] = &state.get("shape")?.as_array()?[..] else { return None };
    let [outputs, inputs] = [size(outputs)?, size(inputs)?];
    let fits = is("blocksize", BLOCK) && is("nested_blocksize", NESTED_BLOCK) && inputs.is_multiple_of(BLOCK);
    (fits && outputs > 0 && inputs > 0).then_some([outputs, inputs])
}

/// What is added to quantized scales.
fn offset(state: &Value) -> Option<f32> {
    #[allow(clippy::cast_possible_truncation)] // It is a float32 in JSON.
    state.get("nested_offset")?.as_f64().map(|offset| offset as f32)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// Codes and scales in the order of values.
struct Matrix {
    codes: SharedBytes,
    /// In float32, or codes of 8 bits.
    scales: SharedBytes,
    nested: Option<Nested>,
}

/// What scales in 8 bits stand for.
struct Nested {
    numbers: SharedBytes,
    scales: SharedBytes,
    offset: f32,
}

impl Matrix {
    /// The scales of all blocks.
    fn scales(&self) -> Vec<f32> {
        let Some(Nested { numbers, scales, offset }) = &self.nested else {
            return floats(self.scales.as_slice()).collect();
        };
        let numbers: Vec<f32> = floats(numbers.as_slice()).collect();
        let of_codes = self.scales.as_slice().chunks(NESTED_BLOCK).zip(floats(scales.as_slice()));
        let value = |code: &u8, scale: f32| numbers[usize::from(*code)] * scale + offset;
        of_codes
            .flat_map(|(codes, scale)| codes.iter().map(move |code| (code, scale)))
            .map(|(code, scale)| value(code, scale))
            .collect()
    }
}

impl Unpack for Matrix {
    fn unpack(&self) -> Vec<u8> {
        let codes = self.codes.as_slice();
        let mut blocks = Vec::with_capacity(codes.len() / (BLOCK / 2) * Format::NF4.block_bytes());
        for (scale, codes) in self.scales().iter().zip(codes.chunks_exact(BLOCK / 2)) {
            blocks.extend_from_slice(&scale.to_le_bytes());
            for codes in codes.chunks_exact(16) {
                let code =
                    |value: usize| if value.is_multiple_of(2) { codes[value / 2] >> 4 } else { codes[value / 2] & 15 };
                blocks.extend((0..16).map(|value| code(value) | code(value + 16) << 4));
            }
        }
        blocks
    }

    fn release(&self) {
        self.codes.release();
        self.scales.release();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_state_has_the_shape_of_whole_blocks() {
        let state = |changes: Value| {
            let mut state =
                json!({ "shape": [3, 128], "blocksize": 64, "nested_blocksize": 256, "nested_offset": 0.5 });
            for (key, value) in changes.as_object().into_iter().flatten() {
                state[key] = value.clone();
            }
            (shape(&state), offset(&state))
        };
        assert_eq!(state(json!({})), (Some([3, 128]), Some(0.5)));
        for changes in [
            json!({ "shape": [3, 96] }),
            json!({ "shape": [3] }),
            json!({ "shape": [0, 64] }),
            json!({ "shape": [-3, 64] }),
            json!({ "shape": null }),
            json!({ "blocksize": 128 }),
            json!({ "nested_blocksize": 64 }),
        ] {
            assert_eq!(state(changes.clone()).0, None, "{changes}");
        }
        assert_eq!(state(json!({ "nested_offset": null })).1, None);
    }
}
