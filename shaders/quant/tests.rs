//! Tests of every format through the table: bits, sizes, names and the AVX2 decoders.

use proptest::prelude::*;

use super::integer::{IntegerBlock, Scale, Unit};
use super::*;

/// Blocks of a format and their values: `tests/generate/quant_fixtures.py` writes them.
fn fixture(format: Format) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quant");
    let file = format!("{folder}/{}.bin", format.name().to_lowercase());
    std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Asserts equal bits. All NaNs are equal, since the payload is not part of the format.
fn assert_same_bits(format: Format, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        assert!(same, "{format} value {index}: {found:e}, expected {expected:e}");
    }
}

#[test]
fn every_format_decodes_to_the_same_bits_as_the_gguf_package() {
    for &format in Format::ALL {
        let fixture = fixture(format);
        let (count, rest) = fixture.split_at(4);
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
fn a_format_is_found_by_its_name_and_its_number() {
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
fn the_error_for_an_unknown_name_lists_the_known_names() {
    let error = "Q4_K_M".parse::<Format>().unwrap_err().to_string();
    assert!(error.contains("Q4_K_M") && error.contains("Q6_K"), "{error}");
}

#[test]
fn a_row_has_no_size_if_blocks_are_incomplete_or_the_count_overflows() {
    assert_eq!(Format::Q4_K.row_bytes(512), Some(288));
    assert_eq!(Format::Q4_K.row_bytes(32), None);
    assert_eq!(Format::Q8_0.row_bytes(0), Some(0));
    assert_eq!(Format::F32.row_bytes(usize::MAX), None);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_avx2<F: BlockFormat>(bytes: &[u8], out: &mut [f32]) {
    // SAFETY: this function enables the CPU features.
    unsafe { F::decode_blocks_avx2(bytes, out) }
}

/// Computes the values of a block from its integers.
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
        let code = f32::from(layout.integer_at(&integers, index));
        let in_units = |integer: i8| match layout.scale {
            _ if !layout.group_scales => 1.0,
            Scale::Integer => f32::from(integer),
            Scale::Float8 => integer::float8(integer as u8),
        };
        let zero_point = if layout.zero_points { f32::from(integers.zero_point) } else { 0.0 };
        *out = unit * layout.unit_factor() * in_units(integers.scales[group]) * (code - zero_point);
        if layout.minimum {
            *out += integers.minimum_unit.to_f32() * in_units(integers.minima[group]);
        }
    }
}

proptest! {
    #[test]
    fn the_integers_of_a_block_give_the_values_of_decode(index in 0..Format::ALL.len(), seed in any::<u64>()) {
        let format = Format::ALL[index];
        let Some(layout) = format.integers() else { return Ok(()) };
        let weight = random::weight("w", format, 1, format.block_len(), seed);
        let mut values = vec![0.0; format.block_len()];
        dispatch!(format, F => from_integers::<F>(layout, weight.bytes(), &mut values));
        assert_same_bits(format, &values, &weight.to_f32());
    }

    #[test]
    fn packing_is_the_inverse_of_unpacking(index in 0..Format::ALL.len(), seed in any::<u64>()) {
        let format = Format::ALL[index];
        let Packing::Integers(_) = format.packing() else { return Ok(()) };
        let weight = random::weight("w", format, 1, format.block_len(), seed);
        let mut packed = vec![0xaa; format.block_bytes()];
        dispatch!(format, F => {
            let mut integers = IntegerBlock::ZERO;
            F::integers(weight.bytes(), &mut integers);
            F::pack(&integers, &mut packed);
        });
        let mut values = vec![0.0; format.block_len()];
        format.dequantize(&packed, &mut values);
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
    fn the_avx2_decoder_gives_the_same_bits_as_the_scalar_one(index in 0..Format::ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        if !crate::cpu::Kernel::Avx2.is_supported() {
            eprintln!("SKIPPED: this CPU has no AVX2");
            return Ok(());
        }
        let format = Format::ALL[index];
        let blocks = bytes.len() / format.block_bytes();
        let bytes = &bytes[..blocks * format.block_bytes()];
        let mut expected = vec![0.0; blocks * format.block_len()];
        format.dequantize(bytes, &mut expected);
        let mut found = vec![0.0; expected.len()];
        // SAFETY: the check above ensures AVX2, FMA and F16C.
        dispatch!(format, F => unsafe { decode_avx2::<F>(bytes, &mut found) });
        assert_same_bits(format, &found, &expected);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn decoding_two_rows_gives_the_same_bits_as_decoding_each(bytes in prop::collection::vec(any::<u8>(), 2 * 36)) {
        for &format in Format::ALL {
            dispatch!(format, F => assert_pairs_have_the_same_bits::<F>(format, &bytes));
        }
    }
}

/// Checks the decoder of two rows, if the format has one, with the bytes repeated to two blocks.
#[cfg(target_arch = "x86_64")]
fn assert_pairs_have_the_same_bits<F: BlockFormat>(format: Format, bytes: &[u8]) {
    let has_features = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi");
    if !F::DECODES_PAIRS || !has_features || !is_x86_feature_detected!("avx512dq") {
        return;
    }
    let blocks: Vec<u8> = bytes.iter().copied().cycle().take(2 * F::BLOCK_BYTES).collect();
    let (first, second) = blocks.split_at(F::BLOCK_BYTES);
    let mut found = Pair(vec![0.0; 2 * F::BLOCK_LEN]);
    // SAFETY: the check above ensures the CPU features.
    unsafe { decode_pair::<F>([first, second], &mut found) };
    let mut expected = vec![0.0; 2 * F::BLOCK_LEN];
    format.dequantize(&blocks, &mut expected);
    assert_same_bits(format, &found.0, &expected);
}

/// The values of a block of each of two rows: all of the first, then all of the second.
#[cfg(target_arch = "x86_64")]
struct Pair(Vec<f32>);

#[cfg(target_arch = "x86_64")]
impl avx512::PairSink for Pair {
    #[inline(always)]
    unsafe fn take(&mut self, eight: usize, values: std::arch::x86_64::__m512) {
        let mut lanes = [0.0; 16];
        // SAFETY: the array has the size of the register.
        unsafe { std::arch::x86_64::_mm512_storeu_ps(lanes.as_mut_ptr(), values) };
        let second = self.0.len() / 2;
        self.0[8 * eight..][..8].copy_from_slice(&lanes[..8]);
        self.0[second + 8 * eight..][..8].copy_from_slice(&lanes[8..]);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi,avx2,fma,f16c")]
fn decode_pair<F: BlockFormat>(blocks: [&[u8]; 2], sink: &mut Pair) {
    // SAFETY: this function enables the CPU features.
    unsafe { F::decode_pair_avx512(blocks, sink) };
}
