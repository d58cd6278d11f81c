//! Block formats: how a row of weights is stored in fewer bits, one file each.
//!
//! A row is a whole number of *blocks*. A block holds [`BlockFormat::BLOCK_LEN`] values in
//! [`BlockFormat::BLOCK_BYTES`] bytes: small integers and the scales that turn them back into float32. What each value
//! is worth is fixed to the last bit (the order of the float32 operations is part of the format), and equals what the
//! `gguf` Python package computes.
//!
//! To add a format: write its file (a unit struct with [`BlockFormat`]), declare the module, and add its line to the
//! table below. Every kernel, reader and test goes through the table.

use std::fmt;
use std::str::FromStr;

use integer::{IntegerBlock, IntegerLayout};

#[cfg(target_arch = "x86_64")]
pub mod avx2;
pub mod bfloat16;
pub mod float16;
pub mod float32;
pub mod integer;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod random;

/// Turns the table of formats into [`Format`] and into `dispatch!`, the one place where a format known at run time
/// becomes a type: `dispatch!(format, F => F::BLOCK_LEN)`.
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

        /// Evaluates an expression with `$f` standing for the type that implements the format.
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
    /// The upper half of a single: 8 bits of exponent, 7 of fraction.
    BF16 => bfloat16::Bf16,
    /// 4 bits and a scale for 32 values.
    Q4_0 => q4_0::Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1 => q4_1::Q4_1,
    /// 5 bits and a scale for 32 values.
    Q5_0 => q5_0::Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1 => q5_1::Q5_1,
    /// 8 bits and a scale for 32 values.
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
    /// 4 bits into a table of unequal steps, and a scale for 32 values.
    IQ4_NL => iq4_nl::Iq4Nl,
    /// 4 bits into the same table; 6-bit scales for 32 values, in a super-block of 256.
    IQ4_XS => iq4_xs::Iq4Xs,
    /// Floating point of 4 bits, and a power of two for 32 values.
    MXFP4 => mxfp4::Mxfp4,
}

/// One block format: its sizes, and what a block's bytes are worth.
pub trait BlockFormat {
    /// Values in a block.
    const BLOCK_LEN: usize;
    /// Bytes in a block.
    const BLOCK_BYTES: usize;
    /// The number that stands for the format in a GGUF tensor table.
    const GGML_ID: u32;
    /// The format's usual name.
    const NAME: &'static str;
    /// The integers that a block is made of; `None`: integer kernels leave the format to float32.
    const INTEGERS: Option<IntegerLayout> = None;

    /// Decodes one block: `block` has [`Self::BLOCK_BYTES`] bytes, `out` takes [`Self::BLOCK_LEN`] values.
    ///
    /// This is the definition that every other decoder must equal, bit for bit.
    fn decode(block: &[u8], out: &mut [f32]);

    /// Takes one block apart for the integer kernels: what is not in the format's layout is left as it is.
    ///
    /// The values that follow from the parts are those of [`Self::decode`], bit for bit.
    ///
    /// # Panics
    /// When the format has no integers (see [`Self::INTEGERS`]).
    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        let _ = (block, out);
        unreachable!("{} has no integers", Self::NAME)
    }

    /// Decodes consecutive blocks.
    #[inline(always)]
    fn decode_blocks(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BLOCK_BYTES).zip(out.chunks_exact_mut(Self::BLOCK_LEN)) {
            Self::decode(block, out);
        }
    }

    /// Decodes one block inside a function compiled for AVX2, FMA and F16C: gives `sink` eight values at a time,
    /// in order. For blocks of a multiple of eight values only.
    ///
    /// The default leaves it to the compiler to vectorise [`Self::decode`]; a format overrides it where intrinsics are
    /// faster. The values are those of [`Self::decode`], bit for bit.
    ///
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        let mut values = [0.0; MAX_BLOCK_LEN];
        Self::decode(block, &mut values[..Self::BLOCK_LEN]);
        for (eight, values) in values[..Self::BLOCK_LEN].chunks_exact(avx2::LANES).enumerate() {
            // SAFETY: the caller has the features.
            unsafe { sink.take(eight, avx2::load(values)) };
        }
    }

    /// As [`Self::decode_eights_avx2`], for a block of each of four rows.
    ///
    /// A long block overrides it to take a part of each row in turn: the sums that the values go into are one chain of
    /// additions a row, and only work on the other rows hides their latency.
    ///
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], [a, b, c, d]: [&mut S; 4]) {
        // SAFETY: the caller has the features.
        unsafe {
            Self::decode_eights_avx2(blocks[0], a);
            Self::decode_eights_avx2(blocks[1], b);
            Self::decode_eights_avx2(blocks[2], c);
            Self::decode_eights_avx2(blocks[3], d);
        }
    }

    /// Decodes consecutive blocks inside a function compiled for AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_blocks_avx2(bytes: &[u8], out: &mut [f32]) {
        if !Self::BLOCK_LEN.is_multiple_of(avx2::LANES) {
            return Self::decode_blocks(bytes, out);
        }
        for (block, out) in bytes.chunks_exact(Self::BLOCK_BYTES).zip(out.chunks_exact_mut(Self::BLOCK_LEN)) {
            // SAFETY: the caller has the features.
            unsafe { Self::decode_eights_avx2(block, &mut avx2::Store { out }) };
        }
    }
}

/// The longest block of any format.
pub const MAX_BLOCK_LEN: usize = 256;

impl Format {
    /// The format that a GGUF tensor table calls `id`; `None` when it is not one of ours.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.ggml_id() == id)
    }

    /// The number that stands for the format in a GGUF tensor table.
    #[must_use]
    pub fn ggml_id(self) -> u32 {
        dispatch!(self, F => F::GGML_ID)
    }

    /// The usual name, such as `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        dispatch!(self, F => F::NAME)
    }

    /// The integers that a block is made of; `None` for the floating-point formats.
    #[must_use]
    pub fn integers(self) -> Option<IntegerLayout> {
        dispatch!(self, F => F::INTEGERS)
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

    /// Bytes of a row of `columns` values; `None` when that is not a whole number of blocks, or too many bytes to count.
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
    /// When `bytes` is not exactly what `out.len()` values take.
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

/// No format has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown weight format {name:?}; known formats: {}", known_names())]
pub struct UnknownFormat {
    /// The name that was asked for.
    pub name: String,
}

fn known_names() -> String {
    Format::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Format {
    type Err = UnknownFormat;

    /// Finds a format by its name, in either case.
    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let known = Format::ALL.iter().copied().find(|format| format.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownFormat { name: name.to_owned() })
    }
}

/// The float16 at `offset` of a block.
#[inline(always)]
fn scale_at(block: &[u8], offset: usize) -> f32 {
    float16::to_f32(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::integer::Unit;
    use super::*;

    fn fixture(format: Format) -> &'static [u8] {
        macro_rules! file {
            ($name:literal) => {
                include_bytes!(concat!("../../tests/fixtures/quant/", $name, ".bin"))
            };
        }
        match format {
            Format::F32 => file!("f32"),
            Format::F16 => file!("f16"),
            Format::BF16 => file!("bf16"),
            Format::Q4_0 => file!("q4_0"),
            Format::Q4_1 => file!("q4_1"),
            Format::Q5_0 => file!("q5_0"),
            Format::Q5_1 => file!("q5_1"),
            Format::Q8_0 => file!("q8_0"),
            Format::Q2_K => file!("q2_k"),
            Format::Q3_K => file!("q3_k"),
            Format::Q4_K => file!("q4_k"),
            Format::Q5_K => file!("q5_k"),
            Format::Q6_K => file!("q6_k"),
            Format::IQ4_NL => file!("iq4_nl"),
            Format::IQ4_XS => file!("iq4_xs"),
            Format::MXFP4 => file!("mxfp4"),
        }
    }

    /// Equal bits; any NaN equals any other, since its payload is not part of the format.
    fn assert_same_bits(format: Format, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
            assert!(same, "{format} value {index}: {found:e}, expected {expected:e}");
        }
    }

    #[test]
    fn every_format_decodes_to_the_bits_of_the_gguf_package() {
        for &format in Format::ALL {
            let (count, rest) = fixture(format).split_at(4);
            let blocks = u32::from_le_bytes(count.try_into().unwrap()) as usize;
            let (bytes, values) = rest.split_at(blocks * format.block_bytes());
            let expected: Vec<f32> =
                values.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
            assert_eq!(expected.len(), blocks * format.block_len(), "{format}");
            let mut found = vec![0.0; expected.len()];
            format.dequantize(bytes, &mut found);
            assert_same_bits(format, &found, &expected);
        }
    }

    #[test]
    fn names_and_numbers_lead_back_to_the_format() {
        for &format in Format::ALL {
            assert_eq!(Format::from_ggml(format.ggml_id()), Some(format));
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.name().to_lowercase().parse(), Ok(format));
            assert_eq!(format!("{format:?}"), format.name());
        }
        assert_eq!(Format::from_ggml(4), None);
        assert_eq!(Format::from_ggml(u32::MAX), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = "Q4_K_M".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("Q4_K_M") && error.contains("Q6_K"), "{error}");
    }

    #[test]
    fn a_row_of_part_blocks_or_of_too_many_has_no_size() {
        assert_eq!(Format::Q4_K.row_bytes(512), Some(288));
        assert_eq!(Format::Q4_K.row_bytes(32), None);
        assert_eq!(Format::Q8_0.row_bytes(0), Some(0));
        assert_eq!(Format::F32.row_bytes(usize::MAX), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn decode_avx2<F: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
        // SAFETY: the features are those of this function.
        unsafe { F::decode_blocks_avx2(bytes, out) }
    }

    /// The values of a block, from its integers.
    fn from_integers<F: BlockFormat>(layout: IntegerLayout, block: &[u8], out: &mut [f32]) {
        let mut integers = IntegerBlock::ZERO;
        F::integers(block, &mut integers);
        let unit = match layout.unit {
            Unit::Half => integers.unit.to_f32(),
            Unit::PowerOfTwo => integer::power_of_two(integers.unit_exponent),
        };
        for (index, out) in out.iter_mut().enumerate() {
            let group = index / layout.group;
            assert!(usize::from(integers.codes[index]) < 1 << layout.bits);
            let code = f32::from(layout.integer(integers.codes[index]));
            let in_units = |integer: i8| if layout.group_scales { f32::from(integer) } else { 1.0 };
            *out = unit * in_units(integers.scales[group]) * code;
            if layout.minimum {
                *out += integers.minimum_unit.to_f32() * in_units(integers.minima[group]);
            }
        }
    }

    proptest! {
        #[test]
        fn the_integers_of_a_block_have_its_values(index in 0..Format::ALL.len(), seed in any::<u64>()) {
            let format = Format::ALL[index];
            let Some(layout) = format.integers() else { return Ok(()) };
            let weight = random::weight("w", format, 1, format.block_len(), seed);
            let mut values = vec![0.0; format.block_len()];
            dispatch!(format, F => from_integers::<F>(layout, weight.bytes(), &mut values));
            assert_same_bits(format, &values, &weight.to_f32());
        }

        #[test]
        fn any_bytes_decode_without_panic(index in 0..Format::ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
            let format = Format::ALL[index];
            let blocks = bytes.len() / format.block_bytes();
            let mut values = vec![0.0; blocks * format.block_len()];
            format.dequantize(&bytes[..blocks * format.block_bytes()], &mut values);
        }

        #[cfg(target_arch = "x86_64")]
        #[test]
        fn the_avx2_decoder_gives_the_same_bits(index in 0..Format::ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
            if !crate::cpu::Kernel::Avx2.is_supported() {
                eprintln!("SKIPPED: this machine has no AVX2");
                return Ok(());
            }
            let format = Format::ALL[index];
            let blocks = bytes.len() / format.block_bytes();
            let bytes = &bytes[..blocks * format.block_bytes()];
            let mut expected = vec![0.0; blocks * format.block_len()];
            format.dequantize(bytes, &mut expected);
            let mut found = vec![0.0; expected.len()];
            // SAFETY: the machine has AVX2, FMA and F16C by the test above.
            dispatch!(format, F => unsafe { decode_avx2::<F>(bytes, &mut found) });
            assert_same_bits(format, &found, &expected);
        }
    }
}
