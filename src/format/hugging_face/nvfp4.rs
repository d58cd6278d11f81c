//! Weights in 4-bit floating point with a scale in 8-bit floating point for 16 of them, and a factor for the matrix (NVFP4). They
//! become blocks with the same codes and scales; the factor becomes a tensor of its own, as in GGUF files.
//!
//! | method | codes, two in a byte, the first in its low bits | scales | factor |
//! |---|---|---|---|
//! | compressed-tensors `nvfp4-pack-quantized` | `weight_packed` [outputs, inputs / 2] | `weight_scale` [outputs, inputs / 16] | the inverse of `weight_global_scale` |
//! | ModelOpt | `weight`, likewise | likewise | `weight_scale_2` |
//!
//! A value is `factor * scale * code`. Scales have no sign. Activations keep their own precision, so their scales are not needed.
//!
//! Sources: the packages `compressed-tensors` (`nvfp4`) and `nvidia-modelopt`.

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::quant::mxfp4::CODEBOOK;
use cuelight_shaders::weight::SharedBytes;

use super::derived::Unpack;
use super::error::HuggingFaceFault;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values with one scale.
const GROUP: usize = 16;

/// Groups of a block.
const GROUPS: usize = 4;

/// Bytes of the codes of a group.
const CODE_BYTES: usize = GROUP / 2;

/// The tool that packed the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nvfp4 {
    CompressedTensors,
    ModelOpt,
}

impl Nvfp4 {
    /// What follows the name of a module in the names of its codes and of their factor.
    fn endings(self) -> [&'static str; 2] {
        match self {
            Nvfp4::CompressedTensors => [".weight_packed", ".weight_global_scale"],
            Nvfp4::ModelOpt => [".weight", ".weight_scale_2"],
        }
    }

    /// The factor of a matrix; `None` if it is no positive number in float32.
    fn factor(self, files: &Safetensors, codes: &Tensor) -> Option<f32> {
        let [of_codes, of_factor] = self.endings();
        let tensor = files.tensor(&format!("{}{of_factor}", codes.name.strip_suffix(of_codes)?))?;
        let bytes = files.bytes(tensor).filter(|_| tensor.dtype.name == "F32")?;
        let stored = f32::from_le_bytes(bytes.as_slice().try_into().ok()?);
        let factor = if self == Nvfp4::ModelOpt { stored } else { 1.0 / stored };
        (factor.is_finite() && factor > 0.0).then_some(factor)
    }
}

/// The format with these codes and scales.
fn format() -> Option<Format> {
    Format::with_integers(IntegerLayout::with_codebook(CODEBOOK, 16, GROUP).with_float8_scales())
}

/// The shape of the matrix of codes; `None` when the scales do not fit, or a row is no whole number of blocks.
fn shape(codes: &[usize], scales: &[usize]) -> Option<Vec<usize>> {
    let (&[outputs, bytes], &[scale_outputs, groups]) = (codes, scales) else { return None };
    let fits =
        scale_outputs == outputs && groups.checked_mul(CODE_BYTES) == Some(bytes) && groups.is_multiple_of(GROUPS);
    (fits && outputs * groups > 0).then(|| vec![outputs, groups * GROUP])
}

impl Scheme for Nvfp4 {
    fn needed(&self) -> &'static str {
        "codes of type U8, a scale of type F8_E4M3 for each 16 inputs, a factor above 0 of type F32, and a multiple of 64 inputs"
    }

    fn is_part(&self, _: &Safetensors, name: &str) -> bool {
        const OTHER: [&str; 5] = [".weight_scale", ".input_global_scale", ".input_scale", ".k_scale", ".v_scale"];
        OTHER.iter().chain(&self.endings()[1..]).any(|end| name.ends_with(end))
    }

    /// Modules that ModelOpt leaves out have weights of other types.
    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let stem = tensor.name.strip_suffix(self.endings()[0]).filter(|_| tensor.dtype.name == "U8")?;
        Some(Codes { name: format!("{stem}.weight"), scales: vec![format!("{stem}.weight_scale")] })
    }

    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        let shape = shape(&codes.shape, &scales.shape).filter(|_| scales.dtype.name == "F8_E4M3");
        let factor = self.factor(files, codes);
        let parts = (shape, factor, files.bytes(codes), files.bytes(scales), format());
        let (Some(shape), Some(_), Some(codes), Some(scales), Some(format)) = parts else { return Ok(None) };
        Ok(Some(Packed { factor, ..Packed::new(format, shape, Blocks { codes, scales }) }))
    }
}

/// Codes and scales in the order of values.
struct Blocks {
    codes: SharedBytes,
    scales: SharedBytes,
}

impl Unpack for Blocks {
    fn unpack(&self) -> Vec<u8> {
        let (codes, scales) = (self.codes.as_slice(), self.scales.as_slice());
        let mut blocks = Vec::with_capacity(codes.len() + scales.len());
        for (scales, codes) in scales.chunks_exact(GROUPS).zip(codes.chunks_exact(GROUPS * CODE_BYTES)) {
            blocks.extend(scales);
            for codes in codes.chunks_exact(CODE_BYTES) {
                let code = |input: usize| codes[input / 2] >> (input % 2 * 4) & 15;
                blocks.extend((0..CODE_BYTES).map(|input| code(input) | code(input + CODE_BYTES) << 4));
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
    use super::*;

    #[test]
    fn scales_fit_groups_of_16_inputs_in_whole_blocks() {
        assert_eq!(shape(&[6, 64], &[6, 8]), Some(vec![6, 128]));
        for (codes, scales) in
            [(&[6, 64][..], &[6, 4][..]), (&[6, 16], &[6, 2]), (&[6, 64], &[5, 8]), (&[64], &[8]), (&[6, 0], &[6, 0])]
        {
            assert_eq!(shape(codes, scales), None, "{codes:?} {scales:?}");
        }
    }
}
