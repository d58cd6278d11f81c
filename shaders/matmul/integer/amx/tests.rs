//! Compares the kernel on modelled tiles with the AVX-512 VNNI kernel, bit for bit.
//!
//! On a CPU with AMX, the tests of `matmul` also run the kernel on the hardware.

use proptest::prelude::*;

use super::model::AmxModel;
use super::*;
use crate::cpu::{ActivationBits, Kernel, SharedMut, Solo};
use crate::matmul::integer::activations::{self, Panels};
use crate::matmul::integer::avx512;
use crate::matmul::integer::packed::PackedWeight;
use crate::quant::{Format, dispatch, random};
use crate::tuning::Tuning;

/// One panel more than share an unpacked strip.
const MOST_ROWS: usize = PANEL_ROWS * (MOST_PANELS + 1);

/// Whether this CPU lacks the instructions that the kernel needs in addition to tiles.
fn skipped() -> bool {
    let skipped = !Kernel::Avx512Vnni.is_supported();
    if skipped {
        eprintln!("SKIPPED: this CPU does not support the {} kernel", Kernel::Avx512Vnni);
    }
    skipped
}

/// The bits of a product with a random weight, computed by the kernel on modelled tiles and by the AVX-512 kernel, for
/// the given outputs.
fn both(format: Format, outputs: Range<usize>, columns: usize, rows: usize, seed: u64) -> [Vec<u32>; 2] {
    let bits = ActivationBits::ALL[seed as usize % 2];
    let weight = random::weight("w", format, outputs.end, columns, seed);
    let input = random::activations(rows * columns, seed);
    let bias = random::activations(outputs.end, seed + 1);
    let packed = PackedWeight::new(&weight, &Solo).unwrap();
    let mut scratch = vec![f32::NAN; activations::scratch_len(rows, columns)];
    let panels = Panels::round(Kernel::Avx512Vnni, bits, &Solo, &input, rows, columns, &mut scratch);
    let run = |run: &dyn Fn(&Task<'_>)| {
        let mut output = vec![f32::NAN; rows * outputs.end];
        run(&Task {
            factor: 1.0,
            weight: &weight,
            bias: Some(&bias),
            outputs: outputs.clone(),
            input: &input,
            integers: Some((&packed, panels)),
            rounded: None,
            rows,
            tuning: Tuning { amx_least_rows: 1 + seed as usize % 6, ..Tuning::default() },
            output: &SharedMut::new(&mut output),
        });
        output.into_iter().map(f32::to_bits).collect()
    };
    // SAFETY: the CPU supports AVX-512 with VNNI, since the test was not skipped. The model needs nothing else.
    unsafe {
        [
            run(&|task| dispatch!(format, F => run_with::<AmxModel, F>(task))),
            run(&|task| dispatch!(format, F => avx512::run::<F>(task))),
        ]
    }
}

fn integer_formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.integers().is_some())
}

proptest! {
    #[test]
    fn tiles_give_the_same_bits_as_avx512(
        format in 0..integer_formats().count(),
        first in 0..2_usize,
        outputs in 1..80_usize,
        blocks in 1..40_usize,
        rows in prop_oneof![4 => 1..50_usize, 1 => 1..MOST_ROWS],
        seed in any::<u32>(),
    ) {
        if skipped() {
            return Ok(());
        }
        let format = integer_formats().nth(format).unwrap();
        let columns = if format.block_len() == 256 { blocks % 5 + 1 } else { blocks } * format.block_len();
        let first = first * STRIP_ROWS;
        let [found, expected] = both(format, first..first + outputs, columns, rows, seed.into());
        prop_assert!(found == expected, "{format}: bits differ");
    }
}

#[test]
fn every_format_and_row_count_gives_the_same_bits_as_avx512() {
    if skipped() {
        return;
    }
    for format in integer_formats() {
        let columns = if format.block_len() == 256 { 512 } else { 9 * format.block_len() };
        for rows in 1..=64 {
            let [found, expected] = both(format, 0..35, columns, rows, 3);
            assert!(found == expected, "{format}, {rows} rows: bits differ");
        }
    }
}

#[test]
fn the_model_passes_the_check_of_the_hardware() {
    // SAFETY: the model needs no CPU features.
    assert!(unsafe { tiles::check::<AmxModel>() });
    // SAFETY: as above.
    assert_eq!(unsafe { tiles::form_products_with::<AmxModel>(1) }, 4 * 2 * 16 * 16 * 64);
}

#[test]
fn shapes_have_the_layout_of_the_configuration_instruction() {
    let shapes = shapes(13);
    assert_eq!(size_of_val(&shapes), 64);
    // SAFETY: the value is 64 bytes without padding.
    let bytes: [u8; 64] = unsafe { std::mem::transmute(shapes) };
    assert_eq!(bytes[..2], [1, 0]);
    assert_eq!(bytes[16..32], [32, 0, 32, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0]);
    assert_eq!(bytes[48..56], [13, 13, 8, 8, 13, 13, 13, 13]);
    assert!(bytes[2..16].iter().chain(&bytes[32..48]).chain(&bytes[56..]).all(|&byte| byte == 0));
}
