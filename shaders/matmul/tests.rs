//! Compares every kernel with the float64 reference, and with itself in other batches.

use std::sync::Arc;

use proptest::prelude::*;

use super::inputs::{exact_activations, parts};
use super::{Linear, bfloat16, reference};
use crate::cpu::{ActivationBits, Kernel, Solo, Team};
use crate::kv::KvCache;
use crate::op::{Batch, CpuArgs, Op};
use crate::quant::{Format, random};
use crate::recurrent::StateCache;
use crate::tuning::Tuning;
use crate::weight::Weight;

/// A team that starts a thread for every second task and runs the tasks in reverse order.
struct Scattered(usize);

impl Team for Scattered {
    fn threads(&self) -> usize {
        self.0
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for task in (0..tasks).rev() {
                if task % 2 == 0 {
                    scope.spawn(move || body(task));
                } else {
                    body(task);
                }
            }
        });
    }
}

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| {
        if !kernel.is_supported() {
            eprintln!("SKIPPED: this CPU does not support the {kernel} kernel");
        }
        kernel.is_supported()
    })
}

fn run(op: &Linear, kernel: Kernel, team: &dyn Team, input: &[f32]) -> Vec<Vec<f32>> {
    run_in_bits(op, kernel, ActivationBits::default(), team, input)
}

fn run_in_bits(op: &Linear, kernel: Kernel, bits: ActivationBits, team: &dyn Team, input: &[f32]) -> Vec<Vec<f32>> {
    run_tuned(op, (kernel, bits, Tuning::default()), team, input)
}

fn run_tuned(
    op: &Linear,
    (kernel, activation_bits, tuning): (Kernel, ActivationBits, Tuning),
    team: &dyn Team,
    input: &[f32],
) -> Vec<Vec<f32>> {
    let rows = input.len() / op.weights[0].columns;
    let mut outputs: Vec<Vec<f32>> = op.weights.iter().map(|weight| vec![f32::NAN; rows * weight.rows]).collect();
    let mut parts: Vec<&mut [f32]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let batch = Batch::default();
    let kv = KvCache::empty();
    let scratch = &mut vec![f32::NAN; op.scratch_len(kernel, rows, 0)];
    op.run_cpu(&mut CpuArgs {
        kernel,
        activation_bits,
        tuning,
        team,
        batch,
        kv: &kv,
        states: &StateCache::empty(),
        rows,
        scratch,
        inputs: &[input],
        outputs: &mut parts,
    });
    outputs
}

/// Whether the kernel rounds the input for this weight.
fn rounds(kernel: Kernel, weight: &Weight) -> bool {
    kernel.is_integer() && weight.format.integers().is_some()
}

/// The op, prepared for each supported kernel.
fn prepared(op: impl Fn() -> Linear) -> Vec<(Kernel, Linear)> {
    kernels()
        .map(|kernel| {
            let mut op = op();
            op.prepare_cpu(kernel, &Scattered(2));
            (kernel, op)
        })
        .collect()
}

/// The tolerance of each result: the rounding of float32 sums, plus half a step for every rounded value of the input
/// (see [`super::integer::activations`]).
fn tolerances(op: &Linear, index: usize, kernel: Kernel, input: &[f32]) -> Vec<f64> {
    let (weight, bias) = (&op.weights[index], op.biases[index].as_deref());
    let expected = reference::linear(weight, bias, input);
    if !rounds(kernel, weight) {
        return expected.iter().map(|product| 1e-6 * product.magnitude).collect();
    }
    let values = weight.to_f32();
    let of_row = input.chunks_exact(weight.columns).flat_map(|row| {
        let largest = |block: &[f32]| block.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
        let half_steps: Vec<f64> = row.chunks_exact(32).map(|block| largest(block) / (2.0 * 127.0 * 128.0)).collect();
        let of_weights = |weights: &[f32]| {
            let blocks = weights.chunks_exact(32).zip(&half_steps);
            let rounding: f64 =
                blocks.map(|(block, step)| step * block.iter().map(|w| f64::from(w.abs())).sum::<f64>()).sum();
            1.02 * rounding + 1e-6 * parts(row)
        };
        values.chunks_exact(weight.columns).map(of_weights).collect::<Vec<_>>()
    });
    of_row.zip(&expected).map(|(of_row, product)| of_row + 1e-6 * product.magnitude).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Weights of different formats that share an input. Every second one has a bias.
fn linear(formats: &[Format], outputs: &[usize], columns: usize, seed: u64) -> Linear {
    let weight = |(index, (&format, &rows)): (usize, (&Format, &usize))| {
        random::weight("w", format, rows, columns, seed + index as u64)
    };
    let weights: Vec<Weight> = formats.iter().zip(outputs).enumerate().map(weight).collect();
    let bias =
        |(index, weight): (usize, &Weight)| (index % 2 == 0).then(|| random::activations(weight.rows, seed).into());
    let biases = weights.iter().enumerate().map(bias).collect();
    Linear::new(weights, biases).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_kernel_agrees_with_the_reference(
        formats in prop::collection::vec(0..Format::ALL.len(), 1..4),
        outputs in prop::collection::vec(1..40_usize, 3),
        blocks in 1..40_usize,
        rows in 1..70_usize,
        seed in any::<u32>(),
    ) {
        let formats: Vec<Format> = formats.into_iter().map(|index| Format::ALL[index]).collect();
        let block_len = formats.iter().map(|format| format.block_len()).max().unwrap();
        let columns = if block_len == 256 { blocks % 5 + 1 } else { blocks } * block_len;
        let input = random::activations(rows * columns, seed.into());
        for (kernel, op) in prepared(|| linear(&formats, &outputs, columns, seed.into())) {
            let found = run(&op, kernel, &Solo, &input);
            for (index, found) in found.iter().enumerate() {
                let expected = reference::linear(&op.weights[index], op.biases[index].as_deref(), &input);
                prop_assert_eq!(found.len(), expected.len());
                let tolerances = tolerances(&op, index, kernel, &input);
                for ((found, expected), tolerance) in found.iter().zip(&expected).zip(tolerances) {
                    let error = (f64::from(*found) - expected.value).abs();
                    prop_assert!(
                        error <= tolerance,
                        "{kernel} {:?}: {found}, expected {expected:?} within {tolerance}", op.weights[index]
                    );
                }
            }
        }
    }

    /// With eight bits only the first of the two planes is used. Inputs that eight bits represent exactly give the bits
    /// of fifteen.
    #[test]
    fn eight_bits_give_the_same_bits_in_every_kernel_and_fifteen_agree_if_exact(
        format in 0..Format::ALL.len(),
        outputs in 1..40_usize,
        blocks in 1..20_usize,
        rows in 1..40_usize,
        seed in any::<u32>(),
    ) {
        let format = Format::ALL[format];
        let columns = if format.block_len() == 256 { blocks % 5 + 1 } else { blocks } * format.block_len();
        let input = random::activations(rows * columns, seed.into());
        // Whole numbers up to 127, with one 127 in every block.
        let mut whole: Vec<f32> = input.iter().map(|x| (x * 40.0).round().clamp(-127.0, 127.0)).collect();
        whole.chunks_mut(32).for_each(|block| block[0] = 127.0);
        let mut first = None;
        for (kernel, op) in prepared(|| linear(&[format], &[outputs], columns, seed.into())) {
            let run = |bits, input: &[f32]| -> Vec<u32> {
                run_in_bits(&op, kernel, bits, &Solo, input)[0].iter().map(|value| value.to_bits()).collect()
            };
            let exact = run(ActivationBits::Eight, &whole);
            if !bfloat16::multiplies(kernel, ActivationBits::Eight, format) {
                prop_assert_eq!(&exact, &run(ActivationBits::Fifteen, &whole), "{}", kernel);
            }
            if rounds(kernel, &op.weights[0]) {
                let found = run(ActivationBits::Eight, &input);
                prop_assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{}", kernel);
            }
        }
    }

    /// With an input that 15 bits represent exactly, the only error is the rounding of float32 sums.
    #[test]
    fn the_only_error_of_integer_kernels_is_that_of_float32_sums(
        format in 0..Format::ALL.len(),
        outputs in 1..40_usize,
        blocks in 1..40_usize,
        rows in 1..20_usize,
        seed in any::<u32>(),
    ) {
        let format = Format::ALL[format];
        prop_assume!(format.integers().is_some());
        let columns = if format.block_len() == 256 { blocks % 5 + 1 } else { blocks } * format.block_len();
        let input = exact_activations(rows * columns, seed.into());
        let mut all: Vec<Vec<u32>> = Vec::new();
        for (kernel, op) in prepared(|| linear(&[format], &[outputs], columns, seed.into())) {
            if !kernel.is_integer() {
                continue;
            }
            let found = &run(&op, kernel, &Solo, &input)[0];
            let expected = reference::linear(&op.weights[0], op.biases[0].as_deref(), &input);
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let terms = expected.magnitude + parts(&input[index / outputs * columns..][..columns]);
                let error = (f64::from(*found) - expected.value).abs();
                prop_assert!(error <= 1e-6 * terms, "{kernel} {format}: {found}, expected {expected:?}");
            }
            all.push(bits(found));
        }
        prop_assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{format}: integer kernels differ");
    }

    /// All instruction sets with fused products add up the same eight sums.
    #[test]
    fn every_kernel_but_the_portable_one_multiplies_floating_point_weights_with_the_same_bits(
        format in 0..Format::ALL.len(),
        outputs in 1..60_usize,
        blocks in 1..20_usize,
        rows in 1..200_usize,
        seed in any::<u32>(),
    ) {
        let format = Format::ALL[format];
        prop_assume!(format.integers().is_none());
        let columns = blocks * format.block_len().max(31);
        let columns = columns - columns % format.block_len();
        let input = random::activations(rows * columns, seed.into());
        let mut first = None;
        for (kernel, op) in prepared(|| linear(&[format], &[outputs], columns, seed.into())) {
            if kernel != Kernel::Scalar {
                let found = bits(&run(&op, kernel, &Solo, &input)[0]);
                prop_assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{} {}", kernel, format);
            }
        }
    }

    /// Each input is one BF16 value, so the only error is the rounding of float32 sums.
    #[test]
    fn bf16_weights_times_bf16_values_agree_with_the_reference(
        outputs in 1..60_usize,
        columns in 1..1200_usize,
        rows in 1..120_usize,
        seed in any::<u32>(),
    ) {
        let input: Vec<f32> = random::activations(rows * columns, seed.into());
        let input: Vec<f32> = input.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect();
        for (kernel, op) in prepared(|| linear(&[Format::BF16], &[outputs], columns, seed.into())) {
            let found = &run_in_bits(&op, kernel, ActivationBits::Eight, &Solo, &input)[0];
            let expected = reference::linear(&op.weights[0], op.biases[0].as_deref(), &input);
            for (found, expected) in found.iter().zip(&expected) {
                let error = (f64::from(*found) - expected.value).abs();
                prop_assert!(error <= 1e-6 * expected.magnitude, "{kernel}: {found}, expected {expected:?}");
            }
        }
    }

    /// Any value, even one that no calibration chooses.
    #[test]
    fn no_tuning_changes_a_bit(
        format in 0..Format::ALL.len(),
        outputs in 1..60_usize,
        blocks in 1..20_usize,
        rows in 1..70_usize,
        prefetch_ahead in prop_oneof![Just(0), 1..40_000_usize, Just(usize::MAX)],
        rows_in_cache in prop_oneof![0..20_000_usize, Just(usize::MAX)],
        amx_least_rows in 0..20_usize,
        seed in any::<u32>(),
    ) {
        let tuning = Tuning { prefetch_ahead, rows_in_cache, amx_least_rows };
        let format = Format::ALL[format];
        let columns = if format.block_len() == 256 { blocks % 4 + 1 } else { blocks } * format.block_len();
        let input = random::activations(rows * columns, seed.into());
        let activation_bits = ActivationBits::ALL[seed as usize % 2];
        for (kernel, op) in prepared(|| linear(&[format], &[outputs], columns, seed.into())) {
            let expected = &run_in_bits(&op, kernel, activation_bits, &Solo, &input)[0];
            let found = &run_tuned(&op, (kernel, activation_bits, tuning), &Solo, &input)[0];
            prop_assert_eq!(bits(found), bits(expected), "{} {} {:?}", kernel, format, tuning);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_call(
        format in 0..Format::ALL.len(),
        outputs in 1..100_usize,
        blocks in 1..50_usize,
        rows in 1..=64_usize,
        threads in 1..9_usize,
        seed in any::<u32>(),
    ) {
        let format = Format::ALL[format];
        let columns = if format.block_len() == 256 { blocks % 4 + 1 } else { blocks } * format.block_len();
        let input = random::activations(rows * columns, seed.into());
        let activation_bits = ActivationBits::ALL[seed as usize % 2];
        for (kernel, op) in prepared(|| linear(&[format], &[outputs], columns, seed.into())) {
            let together = &run_in_bits(&op, kernel, activation_bits, &Scattered(threads), &input)[0];
            for (row, input) in input.chunks_exact(columns).enumerate() {
                let alone = &run_in_bits(&op, kernel, activation_bits, &Solo, input)[0];
                let found = &together[row * outputs..(row + 1) * outputs];
                prop_assert_eq!(bits(found), bits(alone), "{} {} row {}", kernel, format, row);
            }
        }
    }
}

#[test]
fn every_format_and_row_count_gives_the_bits_of_the_row_alone() {
    const ROWS: usize = 64;
    for &format in Format::ALL {
        // More than a span, and a multiple neither of a span nor, where the block length allows it, of a register.
        let columns = if format.block_len() > 32 { 768 } else { 544 + format.block_len() * 3 };
        // A multiple of a register, where the block length leaves the choice.
        let rounded = (format.block_len() == 1).then_some(576);
        for columns in [columns].into_iter().chain(rounded) {
            let input = random::activations(ROWS * columns, 8);
            for (kernel, op) in prepared(|| linear(&[format, format], &[19, 8], columns, 7)) {
                assert_rows_have_the_bits_of_the_row_alone(&op, kernel, ActivationBits::Fifteen, &input);
            }
        }
    }
}

/// Together with another format, which is rounded in another way.
#[test]
fn rows_rounded_to_bf16_have_the_bits_of_the_row_alone() {
    // More rows than a panel, and more columns than a span.
    for (rows, columns) in [(100, 64), (14, 1056), (14, 544)] {
        let input = random::activations(rows * columns, 3);
        for (kernel, op) in prepared(|| linear(&[Format::BF16, Format::Q8_0], &[37, 8], columns, 5)) {
            assert_rows_have_the_bits_of_the_row_alone(&op, kernel, ActivationBits::Eight, &input);
        }
    }
}

#[track_caller]
fn assert_rows_have_the_bits_of_the_row_alone(op: &Linear, kernel: Kernel, bits: ActivationBits, input: &[f32]) {
    let (format, columns) = (op.weights[0].format, op.weights[0].columns);
    let run = |team: &dyn Team, input: &[f32]| {
        let outputs = run_in_bits(op, kernel, bits, team, input);
        outputs.into_iter().map(|output| output.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
    };
    let alone: Vec<_> = input.chunks_exact(columns).map(|input| run(&Solo, input)).collect();
    for rows in 1..=alone.len() {
        // Use the last rows, so that the index of a row in the call changes with the count.
        let first = alone.len() - rows;
        let found = run(&Scattered(2), &input[first * columns..]);
        for (row, alone) in alone[first..].iter().enumerate() {
            for (found, alone) in found.iter().zip(alone) {
                let found = &found[row * alone.len()..(row + 1) * alone.len()];
                assert_eq!(found, alone, "{kernel} {format}: row {row} of {rows}");
            }
        }
    }
}

#[test]
fn no_rows_give_empty_outputs() {
    for (kernel, op) in prepared(|| linear(&[Format::Q8_0], &[4], 32, 1)) {
        assert_eq!(run(&op, kernel, &Solo, &[]), [Vec::<f32>::new()]);
    }
}

#[test]
fn the_output_widths_are_the_rows_of_the_weights() {
    let op = linear(&[Format::Q8_0, Format::F16], &[4, 6], 32, 1);
    assert_eq!(op.output_widths(&[32]), Ok(vec![4, 6]));
    assert_eq!(op.weights().len(), 2);
    let error = op.output_widths(&[33]).unwrap_err().to_string();
    assert_eq!(error, r#"linear: input of "w" is 33, but must be 32"#);
}

#[test]
fn weights_and_biases_of_wrong_shapes_are_refused() {
    let weight = |rows, columns| Weight::from_f32("w", rows, columns, &vec![0.0; rows * columns]);
    assert!(Linear::new(vec![], vec![]).is_err());
    assert!(Linear::new(vec![weight(2, 3)], vec![]).is_err());
    assert!(Linear::new(vec![weight(2, 3), weight(2, 4)], vec![None, None]).is_err());
    let bias: Arc<[f32]> = [1.0, 2.0, 3.0].into();
    let error = Linear::new(vec![weight(2, 3)], vec![Some(bias)]).unwrap_err().to_string();
    assert_eq!(error, r#"linear: bias of "w" is 3, but must be 2"#);
    assert!(Linear::new(vec![weight(2, 3); 9], vec![None; 9]).is_err());
}
