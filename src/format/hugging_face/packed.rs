//! Quantized integers as other tools pack them. They become blocks with the same codes, scales and zero points.
//!
//! | scheme | codes, n in a 32-bit number, the first lowest | scales | zero points |
//! |---|---|---|---|
//! | compressed-tensors `pack-quantized` | `weight_packed` [outputs, inputs / n] | `weight_scale` [outputs, groups] | `weight_zero_point` [outputs / n, groups] |
//! | compressed-tensors `int-quantized` | `weight` [outputs, inputs], a signed byte each | `weight_scale` [outputs, groups] | `weight_zero_point` [outputs, groups], a signed byte each |
//! | GPTQ | `qweight` [inputs / n, outputs] | `scales` [groups, outputs] | `qzeros` [groups, outputs / n] |
//! | AWQ, version `gemm` | `qweight` [inputs, outputs / n] | `scales` [groups, outputs] | `qzeros` [groups, outputs / n] |
//!
//! A value is `scale * (code - zero)`. Without zero points zero is 8 with 4 bits, 128 with 8, and 0 with signed bytes. Scales in
//! float32, and in bfloat16 below 6e-5, are rounded to float16.
//!
//! - The first format of GPTQ stores `zero - 1`: `gptqmodel` subtracts 1 in each code of a number at once, so a zero of 0 borrows
//!   from the next code, and adding 1 in each code at once gives all of them back.
//! - In a number of AWQ, codes belong to the outputs 0, 2, 4, 6, 1, 3, 5, 7.
//! - A tensor of indices (`g_idx`, `weight_g_idx`) can give each input its group. A block has one scale, so the inputs of a block
//!   must have one group: where they do not, the inputs of the matrix are sorted by their groups, and so are those of the values
//!   that it multiplies.
//!
//! Sources: the packages `compressed-tensors` (`pack_quantized`), `gptqmodel` and `autoawq`.

use std::sync::Arc;

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::quantize::quantize;
use cuelight_shaders::weight::SharedBytes;

use super::derived::Unpack;
use super::error::HuggingFaceFault;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values in a block of the formats that packed integers become.
const BLOCK: usize = 32;

/// Bits of a number that holds codes.
const WORD_BITS: usize = 32;

/// The place in a number of AWQ of the code of each of eight outputs.
const INTERLEAVED: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// In which order codes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// A row of numbers for each output.
    Outputs,
    /// A column of numbers for each output.
    Inputs,
    /// A row of numbers for each input, with interleaved outputs.
    Interleaved,
    /// A row of signed bytes for each output.
    Bytes,
}

/// How zero points are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZeroPoints {
    AsTheyAre,
    LessOne,
}

/// Codes of 4 or 8 bits in 32-bit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedIntegers {
    pub bits: usize,
    pub order: Order,
    /// `None` for symmetric codes, whose zero points are not read.
    pub zero_points: Option<ZeroPoints>,
    /// Whether the config states that groups are in the order of activations.
    pub has_group_order: bool,
}

/// What follows the name of a module in the names of its tensors.
struct Names {
    codes: &'static str,
    scales: &'static str,
    zero_points: &'static str,
    groups: &'static str,
    /// A tensor that is not needed.
    other: &'static str,
}

impl PackedIntegers {
    fn names(self) -> Names {
        match self.order {
            Order::Outputs => Names {
                codes: ".weight_packed",
                scales: ".weight_scale",
                zero_points: ".weight_zero_point",
                groups: ".weight_g_idx",
                other: ".weight_shape",
            },
            Order::Bytes => Names {
                codes: ".weight",
                scales: ".weight_scale",
                zero_points: ".weight_zero_point",
                groups: ".weight_g_idx",
                other: ".input_scale",
            },
            Order::Inputs | Order::Interleaved => Names {
                codes: ".qweight",
                scales: ".scales",
                zero_points: ".qzeros",
                groups: ".g_idx",
                other: ".g_idx",
            },
        }
    }

    /// The format whose blocks have these codes and one scale, and a zero point or zero in the middle of the codes.
    fn format(self) -> Option<Format> {
        let layout = IntegerLayout::new(self.bits, 1 << (self.bits - 1), BLOCK);
        Format::with_integers(if self.zero_points.is_some() { layout.with_zero_points() } else { layout })
    }

    /// The codes in a number.
    fn in_word(self) -> usize {
        if self.order == Order::Bytes { 1 } else { WORD_BITS / self.bits }
    }

    /// The type of codes and zero points.
    fn word_type(self) -> &'static str {
        if self.order == Order::Bytes { "I8" } else { "I32" }
    }

    /// The zero points of a matrix; `None` when types or shapes do not fit.
    fn zero_words(self, files: &Safetensors, stem: &str, outputs: usize, groups: usize) -> Option<SharedBytes> {
        let tensor = files.tensor(&format!("{stem}{}", self.names().zero_points))?;
        let words = outputs.div_ceil(self.in_word());
        let is_by_output = matches!(self.order, Order::Outputs | Order::Bytes);
        let shape = if is_by_output { [words, groups] } else { [groups, words] };
        if tensor.dtype.name != self.word_type() || tensor.shape != shape {
            return None;
        }
        files.bytes(tensor)
    }

    /// The inputs of a matrix in blocks that have one group each.
    fn blocks(self, files: &Safetensors, stem: &str, inputs: usize, groups: usize) -> Result<Blocks, HuggingFaceFault> {
        let name = format!("{stem}{}", self.names().groups);
        let Some(tensor) = files.tensor(&name) else {
            let fault = HuggingFaceFault::NoGroupOrder { tensor: name };
            let in_order = (0..inputs / BLOCK).map(|block| block * BLOCK / (inputs / groups));
            let blocks = Blocks { groups: in_order.collect(), order: None };
            return if self.has_group_order { Err(fault) } else { Ok(blocks) };
        };
        let fits = tensor.dtype.name == "I32" && tensor.shape == [inputs];
        let bytes = files.bytes(tensor).filter(|_| fits);
        let found = bytes.and_then(|bytes| Blocks::of(bytes.as_slice(), groups));
        found.ok_or(HuggingFaceFault::GroupOrder { tensor: name })
    }
}

/// The inputs of a matrix in blocks of one group each.
struct Blocks {
    /// The group of each block.
    groups: Vec<usize>,
    /// The inputs in the order of the blocks, where it is not their own.
    order: Option<Arc<[usize]>>,
}

impl Blocks {
    /// The blocks of inputs with these groups. The inputs are sorted by their groups if it is needed; then each group must have
    /// whole blocks. `None` if it does not, and for a group that is not below `groups`.
    fn of(indices: &[u8], groups: usize) -> Option<Self> {
        let group = |index: &[u8; 4]| usize::try_from(i32::from_le_bytes(*index)).ok().filter(|group| *group < groups);
        let of_inputs = indices.as_chunks::<4>().0.iter().map(group).collect::<Option<Vec<_>>>()?;
        if let Some(groups) = groups_of(&of_inputs) {
            return Some(Blocks { groups, order: None });
        }
        let mut order: Vec<usize> = (0..of_inputs.len()).collect();
        order.sort_by_key(|input| of_inputs[*input]);
        let sorted: Vec<usize> = order.iter().map(|input| of_inputs[*input]).collect();
        Some(Blocks { groups: groups_of(&sorted)?, order: Some(order.into()) })
    }
}

/// The group of each block of inputs, from the group of each input; `None` when a block has several.
fn groups_of(of_inputs: &[usize]) -> Option<Vec<usize>> {
    let of_block = |block: &[usize]| block.iter().all(|group| *group == block[0]).then_some(block[0]);
    of_inputs.chunks(BLOCK).map(of_block).collect()
}

impl Scheme for PackedIntegers {
    fn needed(&self) -> &'static str {
        match self.zero_points {
            _ if self.order == Order::Bytes => {
                "types I8 and F16, BF16 or F32, groups of a multiple of 32, and zero points in I8 for the same groups if the \
                 config states some"
            }
            None => "types I32 and F16, BF16 or F32, and groups of a multiple of 32",
            Some(_) => {
                "types I32 and F16, BF16 or F32, groups of a multiple of 32, and zero points in I32 for the same groups"
            }
        }
    }

    fn is_part(&self, _: &Safetensors, name: &str) -> bool {
        let Names { scales, zero_points, groups, other, .. } = self.names();
        [scales, zero_points, groups, other].iter().any(|part| name.ends_with(part))
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let Names { codes, scales, .. } = self.names();
        // Bytes have the name of a matrix that is not packed.
        let stem =
            tensor.name.strip_suffix(codes).filter(|_| self.order != Order::Bytes || tensor.dtype.name == "I8")?;
        Some(Codes { name: format!("{stem}.weight"), scales: vec![format!("{stem}{scales}")] })
    }

    /// `None` also when a block would have several scales.
    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        let Some(sizes) = Sizes::of(*self, codes, scales) else { return Ok(None) };
        let stem = codes.name.strip_suffix(self.names().codes).unwrap_or(&codes.name);
        let zero_words = self.zero_points.and_then(|_| self.zero_words(files, stem, sizes.outputs, sizes.groups));
        if zero_words.is_some() != self.zero_points.is_some() {
            return Ok(None);
        }
        let blocks = self.blocks(files, stem, sizes.inputs, sizes.groups)?;
        let order = blocks.order.clone();
        let parts = (files.bytes(codes), files.bytes(scales), self.format(), scale_format(scales));
        let (Some(codes), Some(scales), Some(format), Some(scale_format)) = parts else { return Ok(None) };
        let source = Matrix {
            scheme: *self,
            codes,
            scales,
            scale_format,
            zero_words,
            blocks,
            block_bytes: format.block_bytes(),
            sizes,
        };
        let shape = vec![sizes.outputs, sizes.inputs];
        Ok(Some(Packed { order, ..Packed::new(format, shape, source) }))
    }
}

/// The format of scales; `None` for a type that is not one of scales.
fn scale_format(scales: &Tensor) -> Option<Format> {
    [Format::F16, Format::BF16, Format::F32].into_iter().find(|format| format.name() == scales.dtype.name)
}

/// The sizes of a matrix.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    outputs: usize,
    inputs: usize,
    groups: usize,
}

impl Sizes {
    /// `None` when types or shapes do not fit one another, or a group is no whole number of blocks.
    fn of(scheme: PackedIntegers, codes: &Tensor, scales: &Tensor) -> Option<Self> {
        let (&[a, b], &[c, d]) = (&codes.shape[..], &scales.shape[..]) else { return None };
        let unpacked = |words: usize| words.checked_mul(scheme.in_word());
        let (outputs, inputs, groups, scale_outputs) = match scheme.order {
            Order::Outputs | Order::Bytes => (a, unpacked(b)?, d, c),
            Order::Inputs => (b, unpacked(a)?, c, d),
            Order::Interleaved => (unpacked(b)?, a, c, d),
        };
        let is_whole = groups > 0 && inputs.is_multiple_of(groups) && (inputs / groups).is_multiple_of(BLOCK);
        let are_known = codes.dtype.name == scheme.word_type() && scale_format(scales).is_some();
        (is_whole && are_known && scale_outputs == outputs && inputs > 0).then_some(Sizes { outputs, inputs, groups })
    }
}

/// A packed matrix and its bytes.
struct Matrix {
    scheme: PackedIntegers,
    codes: SharedBytes,
    scales: SharedBytes,
    scale_format: Format,
    zero_words: Option<SharedBytes>,
    blocks: Blocks,
    block_bytes: usize,
    sizes: Sizes,
}

impl Unpack for Matrix {
    fn unpack(&self) -> Vec<u8> {
        let mut blocks = Vec::with_capacity(self.sizes.outputs * self.blocks.groups.len() * self.block_bytes);
        for output in 0..self.sizes.outputs {
            for (block, &group) in self.blocks.groups.iter().enumerate() {
                blocks.extend(self.scale(output, group));
                if let Some(words) = &self.zero_words {
                    blocks.push(self.in_block(self.zero(words.as_slice(), output, group)));
                }
                let code = |input: usize| self.code(output, block * BLOCK + input);
                match self.scheme.bits {
                    4 => blocks.extend((0..16).map(|input| code(input) | code(input + 16) << 4)),
                    _ => blocks.extend((0..BLOCK).map(|input| self.in_block(code(input)))),
                }
            }
        }
        blocks
    }

    fn release(&self) {
        self.codes.release();
        self.scales.release();
        if let Some(words) = &self.zero_words {
            words.release();
        }
    }
}

impl Matrix {
    /// A scale as the bytes of a float16.
    fn scale(&self, output: usize, group: usize) -> [u8; 2] {
        let index = match self.scheme.order {
            Order::Outputs | Order::Bytes => output * self.sizes.groups + group,
            Order::Inputs | Order::Interleaved => group * self.sizes.outputs + output,
        };
        let size = self.scale_format.block_bytes();
        let (mut value, mut half) = ([0.0], [0; 2]);
        self.scale_format.dequantize(&self.scales.as_slice()[size * index..size * (index + 1)], &mut value);
        // Rounding to float16 has no errors.
        let _ = quantize(Format::F16, &value, None, &mut half);
        half
    }

    /// The code that represents zero.
    fn zero(&self, words: &[u8], output: usize, group: usize) -> u8 {
        let in_word = self.scheme.in_word();
        let (word, place) = (output / in_word, output % in_word);
        let (index, place) = match self.scheme.order {
            Order::Outputs | Order::Bytes => (word * self.sizes.groups + group, place),
            Order::Inputs => (group * self.sizes.outputs.div_ceil(in_word) + word, place),
            Order::Interleaved => (group * (self.sizes.outputs / in_word) + word, INTERLEAVED[place]),
        };
        let number = self.number(words, index);
        let ones = u32::MAX / ((1 << self.scheme.bits) - 1);
        let number = match self.scheme.zero_points {
            Some(ZeroPoints::LessOne) => u32::from_le_bytes(number).wrapping_add(ones).to_le_bytes(),
            _ => number,
        };
        self.at(number, place)
    }

    /// A code or a zero point as blocks hold it: those of 8 bits have a sign there.
    fn in_block(&self, code: u8) -> u8 {
        if self.scheme.bits == 8 { code ^ 0x80 } else { code }
    }

    /// The code of an output and of the input at a place in the order of the blocks.
    fn code(&self, output: usize, place: usize) -> u8 {
        let input = self.blocks.order.as_ref().map_or(place, |order| order[place]);
        let in_word = self.scheme.in_word();
        let (word, place) = match self.scheme.order {
            Order::Outputs | Order::Bytes => {
                (output * (self.sizes.inputs / in_word) + input / in_word, input % in_word)
            }
            Order::Inputs => (input / in_word * self.sizes.outputs + output, input % in_word),
            Order::Interleaved => {
                (input * (self.sizes.outputs / in_word) + output / in_word, INTERLEAVED[output % in_word])
            }
        };
        self.at(self.number(self.codes.as_slice(), word), place)
    }

    /// A number that holds codes or zero points. A signed byte is a number with one code, which has no sign here.
    fn number(&self, words: &[u8], index: usize) -> [u8; 4] {
        match self.scheme.order {
            Order::Bytes => [words[index] ^ 0x80, 0, 0, 0],
            Order::Outputs | Order::Inputs | Order::Interleaved => words.as_chunks::<4>().0[index],
        }
    }

    /// The code at a place of a number. The first is in the lowest bits, so bytes hold one code of 8 bits or two of 4.
    fn at(&self, number: [u8; 4], place: usize) -> u8 {
        let byte = number[place * self.scheme.bits / 8];
        if self.scheme.bits == 8 { byte } else { byte >> (place % 2 * 4) & 15 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(of_inputs: &[i32], groups: usize) -> Option<(Vec<usize>, Option<Vec<usize>>)> {
        let bytes: Vec<u8> = of_inputs.iter().flat_map(|group| group.to_le_bytes()).collect();
        let Blocks { groups, order } = Blocks::of(&bytes, groups)?;
        Some((groups, order.map(|order| order.to_vec())))
    }

    #[test]
    fn inputs_of_a_block_keep_their_order_if_they_have_one_group() {
        let of_blocks = |groups: &[i32]| groups.iter().flat_map(|group| [*group; BLOCK]).collect::<Vec<_>>();
        assert_eq!(blocks(&of_blocks(&[0, 0, 1]), 2), Some((vec![0, 0, 1], None)));
        assert_eq!(blocks(&of_blocks(&[1, 0]), 2), Some((vec![1, 0], None)));
        assert_eq!(blocks(&of_blocks(&[0, 2]), 2), None);
        assert_eq!(blocks(&of_blocks(&[0, -1]), 2), None);
    }

    #[test]
    fn inputs_are_sorted_by_their_groups() {
        let alternating: Vec<i32> = (0..64).map(|input| 1 - input % 2).collect();
        let order = (1..64).step_by(2).chain((0..64).step_by(2)).collect();
        assert_eq!(blocks(&alternating, 2), Some((vec![0, 1], Some(order))));
        let mut uneven = alternating;
        uneven[0] = 0;
        assert_eq!(blocks(&uneven, 2), None);
    }
}
