//! Quantized weights as other tools pack them. They become blocks of Q4_0 or Q8_0, whose codes and offsets are the same.
//!
//! | scheme | codes | scales |
//! |---|---|---|
//! | compressed-tensors `pack-quantized` | `weight_packed` [outputs, inputs / n], n inputs in a 32-bit number, the first lowest | `weight_scale` [outputs, groups] |
//! | GPTQ | `qweight` [inputs / n, outputs], likewise | `scales` [groups, outputs] |
//!
//! A value is `scale * (code - 8)` with 4 bits, `scale * (code - 128)` with 8. Scales in bfloat16 below 6e-5 are rounded to float16.
//!
//! Sources: the packages `compressed-tensors` (`pack_quantized`) and `gptqmodel`.

use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::quantize::quantize;
use cuelight_shaders::weight::SharedBytes;

use super::derived::Unpack;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values in a block of Q4_0 and Q8_0.
const BLOCK: usize = 32;

/// Bits of a number that holds codes.
const WORD_BITS: usize = 32;

/// In which order codes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// A row of numbers for each output.
    Outputs,
    /// A column of numbers for each output.
    Inputs,
}

/// Codes of 4 or 8 bits in 32-bit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedIntegers {
    pub bits: usize,
    pub order: Order,
}

impl PackedIntegers {
    /// The format whose blocks have these codes, one scale, and zero in the middle of the codes.
    fn format(self) -> Option<Format> {
        let layout = IntegerLayout::new(self.bits, 1 << (self.bits - 1), BLOCK);
        Format::ALL.iter().copied().find(|format| format.integers() == Some(layout))
    }
}

impl Scheme for PackedIntegers {
    fn needed(&self) -> &'static str {
        "types I32 and F16 or BF16, and groups of a multiple of 32"
    }

    /// Zero points and orders of groups are not needed with symmetric codes.
    fn is_part(&self, _: &Safetensors, name: &str) -> bool {
        let parts: &[&str] = match self.order {
            Order::Outputs => &[".weight_scale", ".weight_shape"],
            Order::Inputs => &[".scales", ".qzeros", ".g_idx"],
        };
        parts.iter().any(|part| name.ends_with(part))
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let [codes, scales] = match self.order {
            Order::Outputs => [".weight_packed", ".weight_scale"],
            Order::Inputs => [".qweight", ".scales"],
        };
        let stem = tensor.name.strip_suffix(codes)?;
        Some(Codes { name: format!("{stem}.weight"), scales: vec![format!("{stem}{scales}")] })
    }

    /// `None` also when a block would have several scales.
    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Option<Packed> {
        let (&[a, b], &[c, d]) = (&codes.shape[..], &scales.shape[..]) else { return None };
        let (outputs, words, groups, scale_outputs) = match self.order {
            Order::Outputs => (a, b, d, c),
            Order::Inputs => (b, a, c, d),
        };
        let inputs = words.checked_mul(WORD_BITS / self.bits)?;
        let is_whole = groups > 0 && inputs.is_multiple_of(groups) && (inputs / groups).is_multiple_of(BLOCK);
        let are_known = codes.dtype.name == "I32" && ["F16", "BF16"].contains(&scales.dtype.name);
        if !is_whole || !are_known || scale_outputs != outputs {
            return None;
        }
        let source = Matrix {
            scheme: *self,
            codes: files.bytes(codes)?,
            scales: files.bytes(scales)?,
            has_bfloat16_scales: scales.dtype.name == "BF16",
            outputs,
            inputs,
            groups,
        };
        Some(Packed { format: self.format()?, shape: vec![outputs, inputs], source: Arc::new(source) })
    }
}

/// A packed matrix and its bytes.
struct Matrix {
    scheme: PackedIntegers,
    codes: SharedBytes,
    scales: SharedBytes,
    has_bfloat16_scales: bool,
    outputs: usize,
    inputs: usize,
    groups: usize,
}

impl Unpack for Matrix {
    fn unpack(&self) -> Vec<u8> {
        let block_bytes = 2 + BLOCK * self.scheme.bits / 8;
        let mut blocks = Vec::with_capacity(self.outputs * self.inputs / BLOCK * block_bytes);
        for output in 0..self.outputs {
            for first in (0..self.inputs).step_by(BLOCK) {
                blocks.extend(self.scale(output, first / (self.inputs / self.groups)));
                let code = |input: usize| self.code(output, first + input);
                match self.scheme.bits {
                    4 => blocks.extend((0..16).map(|input| code(input) | code(input + 16) << 4)),
                    _ => blocks.extend((0..BLOCK).map(|input| code(input) ^ 0x80)),
                }
            }
        }
        blocks
    }

    fn release(&self) {
        self.codes.release();
        self.scales.release();
    }
}

impl Matrix {
    /// A scale as the bytes of a float16.
    fn scale(&self, output: usize, group: usize) -> [u8; 2] {
        let index = match self.scheme.order {
            Order::Outputs => output * self.groups + group,
            Order::Inputs => group * self.outputs + output,
        };
        let bytes = &self.scales.as_slice()[2 * index..2 * index + 2];
        if !self.has_bfloat16_scales {
            return [bytes[0], bytes[1]];
        }
        let (mut value, mut half) = ([0.0], [0; 2]);
        Format::BF16.dequantize(bytes, &mut value);
        // Rounding to float16 has no errors.
        let _ = quantize(Format::F16, &value, None, &mut half);
        half
    }

    fn code(&self, output: usize, input: usize) -> u8 {
        let in_word = WORD_BITS / self.scheme.bits;
        let word = match self.scheme.order {
            Order::Outputs => output * (self.inputs / in_word) + input / in_word,
            Order::Inputs => input / in_word * self.outputs + output,
        };
        // The first code is in the lowest bits, so bytes hold one code of 8 bits or two of 4.
        let byte = self.codes.as_slice()[4 * word + input % in_word * self.scheme.bits / 8];
        if self.scheme.bits == 8 { byte } else { byte >> (input % 2 * 4) & 15 }
    }
}
