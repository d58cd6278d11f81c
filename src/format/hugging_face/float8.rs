//! Weights in 8-bit floating point (FP8 E4M3). They become blocks of F8_E4M3, with the same codes and scales.
//!
//! | method | codes | scales |
//! |---|---|---|
//! | `fp8` | `weight` [outputs, inputs] | `weight_scale_inv` or `scale`, one for each block of `weight_block_size`, or one |
//! | `mxfp8` | `weight`, likewise | `weight_scale_inv`, one for each block of `weight_block_size`, in bytes |
//! | compressed-tensors `float-quantized` | `weight`, likewise | `weight_scale`: [outputs, 1], one, or one for each block |
//! | `fbgemm_fp8` | `weight`, likewise | `weight_scale` [outputs, 1] |
//! | ModelOpt `FP8`, `FP8_PER_CHANNEL_PER_TOKEN`, `FP8_PB_WO` | `weight`, likewise | `weight_scale`: one, `[outputs]`, `[blocks, 1, blocks, 1]` |
//!
//! A value is `code * scale`, also where the name of the scales says that it is an inverse. Blocks at the edges of a matrix may be
//! smaller. Stacked matrices have a grid of scales each. Scales are F32, BF16, F16 or F8_E8M0, which float32 represents exactly; in bytes
//! (U8) they are those of F8_E8M0.
//!
//! Sources: the packages `transformers` (`finegrained_fp8`, `fbgemm_fp8`), `compressed-tensors` (`float_quantized`) and
//! `nvidia-modelopt`.

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::SharedBytes;

use super::derived::Unpack;
use super::error::HuggingFaceFault;
use super::stored::{Codes, Packed, Scheme};
use crate::format::safetensors::{Dtype, Safetensors, Tensor};

/// What follows the name of a matrix in the name of its scales.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];

/// The name of a matrix in a module, and that of its scales in DeepSeek's own layout.
const OF_MODULE: [&str; 2] = [".weight", ".scale"];

/// Ends of the names of scales for activations and caches, which keep their own precision here.
const OTHER_SCALES: [&str; 6] =
    [".input_scale", ".activation_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale"];

/// Codes of 8 bits in floating point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Float8 {
    /// Outputs and inputs that share a scale, where the config states them.
    pub block: Option<[usize; 2]>,
}

impl Scheme for Float8 {
    fn needed(&self) -> &'static str {
        "one in F32, BF16, F16, F8_E8M0 or U8 for the matrix, for each output or for each block of the config, \
         and a multiple of 32 inputs"
    }

    fn is_part(&self, files: &Safetensors, name: &str) -> bool {
        // Also of those of another type, so that it is their type that is refused.
        let is_of_codes = |end: &str| {
            let codes = name.strip_suffix(end).and_then(|codes| files.tensor(codes));
            codes.is_some_and(|codes| codes.dtype.bits == 8)
        };
        let is_of_module = || {
            let codes = name.strip_suffix(OF_MODULE[1]).map(|stem| format!("{stem}{}", OF_MODULE[0]));
            codes.and_then(|codes| files.tensor(&codes)).is_some_and(|codes| codes.dtype.name == Format::F8_E4M3.name())
        };
        SCALES.iter().any(|end| is_of_codes(end))
            || is_of_module()
            || OTHER_SCALES.iter().any(|end| name.ends_with(end))
    }

    fn codes(&self, tensor: &Tensor) -> Option<Codes> {
        let name = tensor.name.clone();
        let of_module = name.strip_suffix(OF_MODULE[0]).map(|stem| format!("{stem}{}", OF_MODULE[1]));
        let scales = SCALES.iter().map(|end| format!("{name}{end}")).chain(of_module).collect();
        (tensor.dtype.name == Format::F8_E4M3.name()).then_some(Codes { name, scales })
    }

    fn packed(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Result<Option<Packed>, HuggingFaceFault> {
        Ok(self.fitting(files, codes, scales))
    }
}

impl Float8 {
    fn fitting(&self, files: &Safetensors, codes: &Tensor, scales: &Tensor) -> Option<Packed> {
        let [stack @ .., outputs, inputs] = &codes.shape[..] else { return None };
        let grid = Grid::of(stack, [*outputs, *inputs], &scales.shape, self.block)?;
        let is_whole = inputs.is_multiple_of(BLOCK) && (grid.block[1].is_multiple_of(BLOCK) || grid.across == 1);
        if !is_whole || codes.shape.contains(&0) {
            return None;
        }
        let source = Matrix {
            codes: files.bytes(codes)?,
            scales: files.bytes(scales)?,
            scale_type: scale_type(scales.dtype)?,
            grid,
            outputs: *outputs,
            inputs: *inputs,
        };
        Some(Packed::new(Format::F8_E4M3, codes.shape.clone(), source))
    }
}

/// Values in a block of F8_E4M3.
const BLOCK: usize = 32;

/// Which scale each value of a matrix has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    /// Outputs and inputs that share a scale.
    block: [usize; 2],
    /// Scales along the outputs and along the inputs of a matrix.
    down: usize,
    across: usize,
}

impl Grid {
    /// The grid of scales of this shape for stacked matrices; `None` when they do not fit. Tools differ in axes of length 1.
    fn of(stack: &[usize], matrix: [usize; 2], scales: &[usize], block: Option<[usize; 2]>) -> Option<Self> {
        let of_block = |block: [usize; 2]| Grid {
            block,
            down: matrix[0].div_ceil(block[0].max(1)),
            across: matrix[1].div_ceil(block[1].max(1)),
        };
        let candidates = [Some(matrix), Some([1, matrix[1]]), block].into_iter().flatten().map(of_block);
        let shape = |grid: &Grid| [stack, &[grid.down, grid.across]].concat();
        let longer = |shape: &[usize]| shape.iter().copied().filter(|size| *size > 1).collect::<Vec<_>>();
        let exact = candidates.clone().find(|grid| shape(grid) == scales);
        exact.or_else(|| candidates.clone().find(|grid| longer(&shape(grid)) == longer(scales) && !scales.contains(&0)))
    }
}

/// The type of scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleType {
    /// Values of a format.
    Values(Format),
    /// Exponents of powers of two.
    Exponents,
}

/// `None` for a type that is not one of scales.
fn scale_type(dtype: Dtype) -> Option<ScaleType> {
    if ["F8_E8M0", "U8"].contains(&dtype.name) {
        return Some(ScaleType::Exponents);
    }
    let format = [Format::F32, Format::BF16, Format::F16].into_iter().find(|format| format.name() == dtype.name)?;
    Some(ScaleType::Values(format))
}

impl ScaleType {
    fn in_float32(self, bytes: &[u8]) -> Vec<f32> {
        let ScaleType::Values(format) = self else {
            return bytes.iter().map(|exponent| power_of_two(*exponent)).collect();
        };
        let mut values = vec![0.0; bytes.len() / format.block_bytes()];
        format.dequantize(bytes, &mut values);
        values
    }
}

/// 2^(exponent - 127). 255 is no number.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// A matrix or several, and the bytes of their codes.
struct Matrix {
    codes: SharedBytes,
    /// [matrices, grid.down, grid.across]
    scales: SharedBytes,
    scale_type: ScaleType,
    grid: Grid,
    outputs: usize,
    inputs: usize,
}

impl Unpack for Matrix {
    fn unpack(&self) -> Vec<u8> {
        let (codes, scales) = (self.codes.as_slice(), self.scale_type.in_float32(self.scales.as_slice()));
        let mut blocks = Vec::with_capacity(codes.len() / BLOCK * Format::F8_E4M3.block_bytes());
        for (row, codes) in codes.chunks_exact(self.inputs).enumerate() {
            let scales = &scales[self.first_scale(row)..][..self.grid.across];
            for (index, codes) in codes.chunks_exact(BLOCK).enumerate() {
                blocks.extend_from_slice(&scales[index * BLOCK / self.grid.block[1]].to_le_bytes());
                blocks.extend_from_slice(codes);
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
    /// The index of the first scale of an output. Outputs are counted through all matrices.
    fn first_scale(&self, row: usize) -> usize {
        let Grid { block, down, across } = self.grid;
        let (matrix, output) = (row / self.outputs, row % self.outputs);
        (matrix * down + output / block[0]) * across
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_fit_a_matrix_its_outputs_or_its_blocks() {
        let grid = |stack: &[usize], scales: &[usize]| {
            let grid = Grid::of(stack, [200, 96], scales, Some([128, 64]))?;
            Some((grid.block, grid.down, grid.across))
        };
        for one in [&[][..], &[1], &[1, 1]] {
            assert_eq!(grid(&[], one), Some(([200, 96], 1, 1)));
        }
        assert_eq!(grid(&[], &[200, 1]), Some(([1, 96], 200, 1)));
        assert_eq!(grid(&[], &[2, 2]), Some(([128, 64], 2, 2)));
        assert_eq!(grid(&[3], &[3, 2, 2]), Some(([128, 64], 2, 2)));
        // Without axes of length 1, and with more of them.
        assert_eq!(grid(&[], &[200]), Some(([1, 96], 200, 1)));
        assert_eq!(grid(&[], &[2, 1, 2, 1]), Some(([128, 64], 2, 2)));
        for other in [&[2][..], &[96], &[2, 1], &[1, 2], &[2, 2, 2], &[0, 0]] {
            assert_eq!(grid(&[], other), None, "{other:?}");
        }
        assert_eq!(grid(&[3], &[2, 2]), None);
    }

    #[test]
    fn exponents_are_powers_of_two() {
        assert_eq!([0, 1, 127, 130].map(power_of_two), [2_f32.powi(-127), 2_f32.powi(-126), 1.0, 8.0]);
        assert!(power_of_two(255).is_nan());
    }
}
