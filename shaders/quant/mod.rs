//! Block formats: how rows of quantised weights are stored, one file per format.
//!
//! A row is a whole number of *blocks*. A block holds [`BlockFormat::BLOCK_LEN`] values in [`BlockFormat::BLOCK_BYTES`]
//! bytes: small integers, and the scales that convert them to float32. A decoder must produce the same bits as the
//! `gguf` Python package, so the order of the float32 operations is part of a format.
//!
//! To add a format, write its file (a unit struct that implements [`BlockFormat`]) and add it to the modules and to the
//! table below. Kernels, readers and tests find it through the table.

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod block;
mod cells;
pub mod grid;
pub mod integer;
pub mod pack;
pub mod random;
mod six_bit_scales;
mod unpack;

pub mod bfloat16;
pub mod f8_e4m3;
pub mod float16;
pub mod float32;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nf4;
pub mod nvfp4;
pub mod q1_0;
pub mod q2_0;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q4_z;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_z;
pub mod tq1_0;
pub mod tq2_0;

pub use block::BlockFormat;
use integer::IntegerLayout;
pub use integer::MAX_BLOCK_LEN;
use pack::Packing;

/// Generates [`Format`] and the macro `dispatch!` from the table of formats. `dispatch!(format, F => F::BLOCK_LEN)`
/// evaluates an expression with the type `F` of a format that is known only at run time.
macro_rules! formats {
    ($($(#[$doc:meta])* $variant:ident => $module:ident::$implementation:ident,)+) => {
        formats!(@enum ($) $($(#[$doc])* $variant => $module::$implementation,)+);
    };
    (@enum ($dollar:tt) $($(#[$doc:meta])* $variant:ident => $module:ident::$implementation:ident,)+) => {
        /// How the values of a tensor are stored.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $variant,)+
        }

        impl Format {
            /// Every format.
            pub const ALL: &[Format] = &[$(Format::$variant,)+];
        }

        /// Evaluates an expression in which `$f` is the type that implements the format.
        macro_rules! dispatch {
            ($dollar format:expr, $dollar f:ident => $dollar body:expr) => {
                match $dollar format {
                    $($crate::quant::Format::$variant => {
                        type $dollar f = $crate::quant::$module::$implementation;
                        $dollar body
                    })+
                }
            };
        }
        pub(crate) use dispatch;
    };
}
formats! {
    /// IEEE 754 single precision.
    F32 => float32::F32,
    /// IEEE 754 half precision.
    F16 => float16::F16,
    /// The upper half of a float32: 8 exponent bits, 7 fraction bits.
    BF16 => bfloat16::Bf16,
    /// 4 bits; a scale for 32 values.
    Q4_0 => q4_0::Q4_0,
    /// 4 bits; a scale and a minimum for 32 values.
    Q4_1 => q4_1::Q4_1,
    /// 5 bits; a scale for 32 values.
    Q5_0 => q5_0::Q5_0,
    /// 5 bits; a scale and a minimum for 32 values.
    Q5_1 => q5_1::Q5_1,
    /// 8 bits; a scale for 32 values.
    Q8_0 => q8_0::Q8_0,
    /// 2 bits; 4-bit scales and minima for 16 values, in a super-block of 256.
    Q2_K => q2_k::Q2K,
    /// 3 bits; 6-bit scales for 16 values, in a super-block of 256.
    Q3_K => q3_k::Q3K,
    /// 4 bits; 6-bit scales and minima for 32 values, in a super-block of 256.
    Q4_K => q4_k::Q4K,
    /// 5 bits; 6-bit scales and minima for 32 values, in a super-block of 256.
    Q5_K => q5_k::Q5K,
    /// 6 bits; 8-bit scales for 16 values, in a super-block of 256.
    Q6_K => q6_k::Q6K,
    /// 4-bit codes of a codebook with unequal steps; a scale for 32 values.
    IQ4_NL => iq4_nl::Iq4Nl,
    /// 4-bit codes of the same codebook; 6-bit scales for 32 values, in a super-block of 256.
    IQ4_XS => iq4_xs::Iq4Xs,
    /// 4-bit floating point; a power-of-two scale for 32 values.
    MXFP4 => mxfp4::Mxfp4,
    /// Cells of 8 values in 8 bits, with signs; 4-bit scales for 32 values, in a super-block of 256.
    IQ2_XXS => iq2_xxs::Iq2Xxs,
    /// Cells of 4 values in 8 bits, with signs; 4-bit scales for 32 values, in a super-block of 256.
    IQ3_XXS => iq3_xxs::Iq3Xxs,
    /// Cells of 4 values in 9 bits, with signs; 4-bit scales for 32 values, in a super-block of 256.
    IQ3_S => iq3_s::Iq3S,
    /// Cells of 8 values in 10 bits, with signs; 4-bit scales for 16 values, in a super-block of 256.
    IQ2_S => iq2_s::Iq2S,
    /// Cells of 8 values in 9 bits, with signs; 4-bit scales for 16 values, in a super-block of 256.
    IQ2_XS => iq2_xs::Iq2Xs,
    /// Cells of 8 values in 11 bits; 3-bit scales for 32 values, in a super-block of 256.
    IQ1_S => iq1_s::Iq1S,
    /// Cells of 8 values in 11 bits; 3-bit scales for 16 values, in a super-block of 256.
    IQ1_M => iq1_m::Iq1M,
    /// -1, 0 or 1, five values in a byte; a scale for 256 values.
    TQ1_0 => tq1_0::Tq1_0,
    /// -1, 0 or 1 in 2 bits; a scale for 256 values.
    TQ2_0 => tq2_0::Tq2_0,
    /// 4-bit floating point; 8-bit floating-point scales for 16 values, in a super-block of 64.
    NVFP4 => nvfp4::Nvfp4,
    /// 1 bit; a scale for 128 values.
    Q1_0 => q1_0::Q1_0,
    /// 2 bits; a scale for 64 values.
    Q2_0 => q2_0::Q2_0,
    /// 8-bit floating point; a float32 scale for 32 values.
    F8_E4M3 => f8_e4m3::F8E4M3,
    /// 4 bits; a scale and a zero point for 32 values.
    Q4_Z => q4_z::Q4Z,
    /// 8 bits; a scale and a zero point for 32 values.
    Q8_Z => q8_z::Q8Z,
    /// 4-bit codes of a codebook of numbers; a float32 scale for 64 values.
    NF4 => nf4::Nf4,
}

impl Format {
    /// The format with number `id`; `None` for an unsupported one.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.ggml_id() == id)
    }

    /// The format's number in a GGUF tensor table, or one that no other format has.
    #[must_use]
    pub fn ggml_id(self) -> u32 {
        dispatch!(self, F => F::GGML_ID)
    }

    /// Whether GGUF files have the format.
    #[must_use]
    pub fn is_in_gguf(self) -> bool {
        dispatch!(self, F => F::IS_IN_GGUF)
    }

    /// The format whose blocks of integers have this layout, and nothing else.
    #[must_use]
    pub fn with_integers(layout: IntegerLayout) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.integers() == Some(layout))
    }

    /// The usual name, such as `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        dispatch!(self, F => F::NAME)
    }

    /// The layout of the integers in a block; `None` for the floating-point formats.
    #[must_use]
    pub fn integers(self) -> Option<IntegerLayout> {
        dispatch!(self, F => F::INTEGERS)
    }

    /// How values become blocks of the format.
    #[must_use]
    pub fn packing(self) -> Packing {
        dispatch!(self, F => F::PACKING)
    }

    /// Values in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        dispatch!(self, F => F::BLOCK_LEN)
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        dispatch!(self, F => F::BLOCK_BYTES)
    }

    /// Bytes of the float32 scale at the start of a block of floating-point codes; 0 for formats without one.
    #[must_use]
    pub fn scale_bytes(self) -> usize {
        dispatch!(self, F => F::SCALE_BYTES)
    }

    /// Bytes of a row of `columns` values; `None` when that is not a whole number of blocks, or the byte count
    /// overflows.
    #[must_use]
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_len()) {
            return None;
        }
        (columns / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Decodes whole blocks into float32.
    ///
    /// # Panics
    /// When the length of `bytes` is not that of `out.len()` values.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(Some(bytes.len()), self.row_bytes(out.len()), "bytes of {} values in {self}", out.len());
        dispatch!(self, F => F::decode_blocks(bytes, out));
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown weight format {name:?}; known formats: {}", known_names())]
pub struct UnknownFormat {
    /// The requested name.
    pub name: String,
}

fn known_names() -> String {
    Format::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Format {
    type Err = UnknownFormat;

    /// Finds a format by its name; case does not matter.
    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let known = Format::ALL.iter().copied().find(|format| format.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownFormat { name: name.to_owned() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
