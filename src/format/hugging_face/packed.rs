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

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::quantize::quantize;
use cuelight_shaders::weight::SharedBytes;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values in a block of Q4_0 and Q8_0.
const BLOCK: usize = 32;

/// Bits of a number that holds codes.
const WORD_BITS: usize = 32;

/// In which order codes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// A row of numbers for each output.
    Outputs,
    /// A column of numbers for each output.
    Inputs,
}

/// How the weights of a directory are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scheme {
    bits: usize,
    order: Order,
}

impl Scheme {
    /// The scheme that the config states; `None` for weights that are not quantized.
    pub(super) fn read(config: &Config) -> Result<Option<Self>, HuggingFaceError> {
        let stated = config.get("quantization_config").or_else(|| config.get("compression_config"));
        let Some(stated) = stated else { return Ok(None) };
        let text = |key: &str| stated.get(key).and_then(|value| value.as_str());
        let method = text("quant_method").or_else(|| text("quant_algo")).unwrap_or("unknown");
        let refused = |reason: &str| {
            let method = if reason.is_empty() { method.to_owned() } else { format!("{method}, {reason}") };
            config.fault(HuggingFaceFault::Quantized { method })
        };
        let (order, weights): (_, Vec<&serde_json::Value>) = match method {
            "compressed-tensors" => {
                let format = text("format").unwrap_or("no format");
                if format != "pack-quantized" {
                    return Err(refused(format));
                }
                let groups = stated.get("config_groups").and_then(|groups| groups.as_object());
                (
                    Order::Outputs,
                    groups
                        .into_iter()
                        .flat_map(|groups| groups.values())
                        .filter_map(|group| group.get("weights"))
                        .collect(),
                )
            }
            "gptq" => (Order::Inputs, vec![stated]),
            _ => return Err(refused("")),
        };
        let flag =
            |weights: &serde_json::Value, keys: [&str; 2]| keys.iter().find_map(|key| weights.get(*key)?.as_bool());
        for weights in &weights {
            if flag(weights, ["symmetric", "sym"]) != Some(true) {
                return Err(refused("with zero points"));
            }
            let is_ordered =
                weights.get("actorder").is_some_and(|order| !order.is_null() && order != "weight" && order != false);
            if is_ordered || flag(weights, ["desc_act", "desc_act"]) == Some(true) {
                return Err(refused("with groups in the order of activations"));
            }
        }
        let bits = |weights: &&serde_json::Value| weights.get("num_bits").or_else(|| weights.get("bits"))?.as_u64();
        match weights.iter().map(bits).collect::<Option<Vec<_>>>().as_deref() {
            Some([first, rest @ ..]) if [4, 8].contains(first) && rest.iter().all(|bits| bits == first) => {
                Ok(Some(Scheme { bits: *first as usize, order }))
            }
            _ => Err(refused("with other than 4 or 8 bits")),
        }
    }

    /// The format whose blocks have these codes, one scale, and zero in the middle of the codes.
    fn format(self) -> Option<Format> {
        let layout = IntegerLayout::new(self.bits, 1 << (self.bits - 1), BLOCK);
        Format::ALL.iter().copied().find(|format| format.integers() == Some(layout))
    }

    /// What follows the name of a matrix in the names of its codes and its scales.
    fn endings(self) -> [&'static str; 2] {
        match self.order {
            Order::Outputs => [".weight_packed", ".weight_scale"],
            Order::Inputs => [".qweight", ".scales"],
        }
    }

    /// Whether a tensor belongs to another one's codes, or is not needed with symmetric codes.
    fn is_part(self, name: &str) -> bool {
        let parts: &[&str] = match self.order {
            Order::Outputs => &[".weight_scale", ".weight_shape"],
            Order::Inputs => &[".scales", ".qzeros", ".g_idx"],
        };
        parts.iter().any(|part| name.ends_with(part))
    }
}

/// A tensor of a directory: as it is stored, or packed.
#[derive(Clone)]
pub(super) struct Stored<'a> {
    /// The name: that of the matrix if it is packed.
    pub name: String,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
    /// The stored tensor, or that of the codes.
    pub tensor: &'a Tensor,
    /// How it is unpacked.
    pub packed: Option<Packed<'a>>,
}

/// The tensors of a directory, in the order of the files.
pub(super) fn stored<'a>(files: &'a Safetensors, scheme: Option<Scheme>) -> Result<Vec<Stored<'a>>, HuggingFaceError> {
    let plain =
        |tensor: &'a Tensor| Stored { name: tensor.name.clone(), shape: tensor.shape.clone(), tensor, packed: None };
    let Some(scheme) = scheme else { return Ok(files.tensors().iter().map(plain).collect()) };
    let [codes_end, scales_end] = scheme.endings();
    let wanted = files.tensors().iter().filter(|tensor| !scheme.is_part(&tensor.name));
    let one = |tensor: &'a Tensor| {
        let Some(stem) = tensor.name.strip_suffix(codes_end) else { return Ok(plain(tensor)) };
        let packed =
            files.tensor(&format!("{stem}{scales_end}")).and_then(|scales| Packed::new(scheme, tensor, scales));
        let packed = packed.ok_or_else(|| {
            let fault = HuggingFaceFault::Packed { tensor: tensor.name.clone(), scales: format!("{stem}{scales_end}") };
            fault.in_file(files.path(tensor))
        })?;
        let shape = vec![packed.outputs, packed.inputs];
        Ok(Stored { name: format!("{stem}.weight"), shape, tensor, packed: Some(packed) })
    };
    wanted.map(one).collect()
}

/// A packed matrix: its codes and scales.
#[derive(Clone)]
pub(super) struct Packed<'a> {
    scheme: Scheme,
    format: Format,
    codes: &'a Tensor,
    scales: &'a Tensor,
    outputs: usize,
    inputs: usize,
    groups: usize,
}

impl<'a> Packed<'a> {
    /// `None` when types or shapes do not fit one another, or a block would have several scales.
    fn new(scheme: Scheme, codes: &'a Tensor, scales: &'a Tensor) -> Option<Self> {
        let (&[a, b], &[c, d]) = (&codes.shape[..], &scales.shape[..]) else { return None };
        let (outputs, words, groups, scale_outputs) = match scheme.order {
            Order::Outputs => (a, b, d, c),
            Order::Inputs => (b, a, c, d),
        };
        let inputs = words.checked_mul(WORD_BITS / scheme.bits)?;
        let is_whole = groups > 0 && inputs.is_multiple_of(groups) && (inputs / groups).is_multiple_of(BLOCK);
        let format = scheme.format()?;
        let types = [codes.dtype.name, scales.dtype.name];
        let are_known = types[0] == "I32" && ["F16", "BF16"].contains(&types[1]);
        (is_whole && are_known && scale_outputs == outputs).then_some(Packed {
            scheme,
            format,
            codes,
            scales,
            outputs,
            inputs,
            groups,
        })
    }

    /// The format that the matrix becomes.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The bytes to unpack.
    pub(super) fn bytes(&self, files: &Safetensors) -> Option<PackedBytes> {
        Some(PackedBytes {
            scheme: self.scheme,
            codes: files.bytes(self.codes)?,
            scales: files.bytes(self.scales)?,
            has_bfloat16_scales: self.scales.dtype.name == "BF16",
            outputs: self.outputs,
            inputs: self.inputs,
            groups: self.groups,
        })
    }
}

/// A packed matrix and its bytes.
pub(super) struct PackedBytes {
    scheme: Scheme,
    codes: SharedBytes,
    scales: SharedBytes,
    has_bfloat16_scales: bool,
    outputs: usize,
    inputs: usize,
    groups: usize,
}

impl PackedBytes {
    /// The matrix in blocks.
    pub(super) fn unpack(&self) -> Vec<u8> {
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

    pub(super) fn release(&self) {
        self.codes.release();
        self.scales.release();
    }

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
