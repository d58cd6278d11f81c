//! Weights in 4-bit floating point with a power of two for 32 of them (MXFP4). They become blocks with the same codes and scales.
//!
//! | method | codes, two in a byte, the first in its low bits | scales |
//! |---|---|---|
//! | `mxfp4` | `*_blocks` [.., outputs, groups, 16] | `*_scales` [.., outputs, groups] |
//! | compressed-tensors `mxfp4-pack-quantized` | `weight_packed` [outputs, inputs / 2] | `weight_scale` [outputs, groups] |
//! | experts of `fp8` with `expert_dtype` `fp4` | `weight`, likewise, of type I8 | `scale` [outputs, groups], of type F8_E8M0 |
//!
//! A value is `2^(scale - 127) * code`. Outputs are rows also in stacked matrices, where unpacked weights of the same model are
//! transposed.
//!
//! Sources: the packages `transformers` (`mxfp4`) and `compressed-tensors` (`mxfp4`).

use cuelight_shaders::quant::Format;
use cuelight_shaders::quant::integer::IntegerLayout;
use cuelight_shaders::quant::mxfp4::CODEBOOK;
use cuelight_shaders::weight::SharedBytes;

use super::derived::Unpack;
use super::error::HuggingFaceFault;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Safetensors, Tensor};

/// Values with one scale, which are a block.
const BLOCK: usize = 32;

/// Bytes of the codes of a block.
const CODE_BYTES: usize = BLOCK / 2;

/// Codes of 4 bits in floating point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float4 {
    /// Matrices with a name of their own, which says that they are packed.
    Blocks,
    /// Matrices of modules.
    Modules,
    /// Matrices of modules under their own names.
    Unnamed,
}

impl Float4 {
    /// What follows the name of a matrix or a module in the names of its codes and of their scales.
    fn endings(self) -> [&'static str; 2] {
        match self {
            Float4::Blocks => ["_blocks", "_scales"],
            Float4::Modules => [".weight_packed", ".weight_scale"],
            Float4::Unnamed => [".weight", ".scale"],
        }
    }

    /// The types of codes and of their scales.
    fn types(self) -> [&'static str; 2] {
        match self {
            Float4::Blocks | Float4::Modules => ["U8", "U8"],
            Float4::Unnamed => ["I8", "F8_E8M0"],
        }
    }

    /// The shape of the matrix of codes; `None` when the scales do not fit.
    fn shape(self, codes: &[usize], scales: &[usize]) -> Option<Vec<usize>> {
        let (groups, outer) = scales.split_last()?;
        let expected = match self {
            Float4::Blocks => [scales, &[CODE_BYTES]].concat(),
            Float4::Modules | Float4::Unnamed => [outer, &[groups.checked_mul(CODE_BYTES)?]].concat(),
        };
        let is_matrix = !outer.is_empty() && !scales.contains(&0);
        (is_matrix && codes == expected).then(|| [outer, &[groups * BLOCK]].concat())
    }
}

/// The format with these codes and scales.
fn format() -> Option<Format> {
    Format::with_integers(IntegerLayout::with_codebook(CODEBOOK, 16, BLOCK).with_powers_of_two())
}

impl Scheme for Float4 {
    fn needed(&self) -> &'static str {
        "both of type U8, or I8 and F8_E8M0, with a scale for each 32 inputs"
    }

    /// Scales of activations are not needed: these keep their own precision here.
    fn is_part(&self, files: &Safetensors, name: &str) -> bool {
        let [codes, scales] = self.endings();
        let of_codes = name.strip_suffix(scales).map(|stem| format!("{stem}{codes}"));
        let is_of_codes = |codes: String| {
            let codes = files.tensor(&codes);
            codes.is_some_and(|codes| *self != Float4::Unnamed || codes.dtype.name == self.types()[0])
        };
        of_codes.is_some_and(is_of_codes) || name.ends_with(".input_global_scale")
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let [codes, scales] = self.endings();
        let stem = tensor.name.strip_suffix(codes)?;
        if *self == Float4::Unnamed && tensor.dtype.name != self.types()[0] {
            return None;
        }
        let name = if *self == Float4::Blocks { tensor.name.clone() } else { format!("{stem}.weight") };
        Some(Codes { name, scales: vec![format!("{stem}{scales}")] })
    }

    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        let are_of_type = [codes.dtype.name, scales.dtype.name] == self.types();
        let shape = self.shape(&codes.shape, &scales.shape).filter(|_| are_of_type);
        let parts = (shape, files.bytes(codes), files.bytes(scales), format());
        let (Some(shape), Some(codes), Some(scales), Some(format)) = parts else { return Ok(None) };
        Ok(Some(Packed::new(format, shape, Blocks { codes, scales })))
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
        for (scale, codes) in scales.iter().zip(codes.chunks_exact(CODE_BYTES)) {
            let code = |input: usize| codes[input / 2] >> (input % 2 * 4) & 15;
            blocks.push(*scale);
            blocks.extend((0..CODE_BYTES).map(|input| code(input) | code(input + CODE_BYTES) << 4));
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
    fn scales_fit_groups_of_32_inputs() {
        let blocks = |codes: &[usize], scales: &[usize]| Float4::Blocks.shape(codes, scales);
        assert_eq!(blocks(&[4, 6, 3, 16], &[4, 6, 3]), Some(vec![4, 6, 96]));
        for (codes, scales) in
            [(&[4, 6, 3, 8][..], &[4, 6, 3][..]), (&[4, 6, 3, 16], &[4, 6]), (&[16], &[]), (&[0, 16], &[0])]
        {
            assert_eq!(blocks(codes, scales), None, "{codes:?} {scales:?}");
        }
        let modules = |codes: &[usize], scales: &[usize]| Float4::Modules.shape(codes, scales);
        assert_eq!(modules(&[6, 48], &[6, 3]), Some(vec![6, 96]));
        assert_eq!(modules(&[6, 48], &[6, 6]), None);
        assert_eq!(modules(&[48], &[3]), None);
    }
}
