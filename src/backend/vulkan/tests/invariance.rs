//! The same bits: in a batch of any size and any chunks where that is promised, and by any way to the device.

use std::collections::HashMap;

use cuelight_shaders::attention;
use cuelight_shaders::cases::{Case, CaseBatch};
use cuelight_shaders::gpu::RowCount;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::quant::{Format, random};

use super::one_op::{OneOp, bits, bucket};
use super::{assert_clean, own_device, shared_device};
use crate::backend::vulkan::VulkanOptions;

fn linear(format: Format, outputs: usize, columns: usize) -> Linear {
    let bias = random::activations(outputs, 2).into();
    Linear::new(vec![random::weight("w", format, outputs, columns, 1)], vec![Some(bias)]).unwrap()
}

#[test]
fn a_row_of_linear_has_the_same_bits_in_a_batch_of_any_size() {
    const ROWS: usize = 64;
    const COLUMNS: usize = 1280;
    const OUTPUTS: usize = 37;
    let Some(device) = shared_device() else { return };
    let input = random::activations(ROWS * COLUMNS, 3);
    for &format in Format::ALL.iter().filter(|format| ["Q4_K", "Q6_K", "Q8_0", "F16"].contains(&format.name())) {
        let linear = linear(format, OUTPUTS, COLUMNS);
        let mut op = OneOp::new(&device, &linear, None).unwrap();
        op.deterministic = true;
        let run = |rows: &[f32]| {
            let count = rows.len() / COLUMNS;
            bits(&op.run(&CaseBatch::of_rows(count), RowCount::All(count), &[rows.to_vec()]).unwrap()[0])
        };
        let alone: Vec<u32> = input.chunks_exact(COLUMNS).flat_map(run).collect();
        for rows in 1..=ROWS {
            // The last rows, so that a row's place in the batch changes with the count.
            let found = run(&input[(ROWS - rows) * COLUMNS..]);
            assert!(found == alone[(ROWS - rows) * OUTPUTS..], "{format}: other bits in a batch of {rows}");
        }
    }
    assert_clean(&device);
}

/// Each row's inputs, by sequence and position.
type RowsOfSequences = HashMap<(u32, u32), Vec<Vec<f32>>>;

/// The rows of all steps of a case.
fn rows_of(case: &Case) -> RowsOfSequences {
    let mut rows = HashMap::new();
    for step in &case.steps {
        let widths = step.input_widths();
        let places = step.batch.sequences.iter().zip(&step.batch.positions);
        for (row, (&sequence, &position)) in places.enumerate() {
            let of_input = |(input, width): (&Vec<f32>, &usize)| input[row * width..(row + 1) * width].to_vec();
            rows.insert((sequence, position), step.inputs.iter().zip(&widths).map(of_input).collect());
        }
    }
    rows
}

/// A step of these rows, and its inputs.
fn step_of(case: &Case, rows: &RowsOfSequences, wanted: &[(u32, u32)]) -> (CaseBatch, Vec<Vec<f32>>) {
    let batch = CaseBatch {
        positions: wanted.iter().map(|(_, position)| *position).collect(),
        sequences: wanted.iter().map(|(sequence, _)| *sequence).collect(),
        block_tables: case.steps[0].batch.block_tables.clone(),
        ..CaseBatch::of_rows(wanted.len())
    };
    let input = |index: usize| wanted.iter().flat_map(|row| rows[row][index].iter().copied()).collect();
    (batch, (0..case.steps[0].inputs.len()).map(input).collect())
}

#[test]
fn a_row_of_attention_has_the_same_bits_in_any_chunks_and_with_its_context_cut_or_not() {
    let Some(device) = shared_device() else { return };
    let longest = |case: &Case| case.steps.iter().map(|step| step.batch.context_tokens()).max();
    for case in attention::cases().iter().filter(|case| longest(case) >= Some(800)) {
        let rows = rows_of(case);
        let length = |sequence: u32| rows.keys().filter(|(of, _)| *of == sequence).count() as u32;
        let of_sequence = |sequence: u32, from: u32, to: u32| (from..to).map(move |position| (sequence, position));
        // Every row, in steps cut by `cut`; with `many` in a bucket of so many rows that no context is cut into pieces.
        let run = |steps: Vec<Vec<(u32, u32)>>, many: bool| {
            let mut op = OneOp::new(&device, &*case.op, case.cache.as_ref()).unwrap();
            op.deterministic = true;
            let mut found = HashMap::new();
            for step in steps {
                let (batch, inputs) = step_of(case, &rows, &step);
                let mut bucket = bucket(&batch);
                bucket.rows = if many { 4096 } else { bucket.rows };
                let output = op.run_in(bucket, &batch, RowCount::All(step.len()), &inputs).unwrap().swap_remove(0);
                let width = output.len() / step.len();
                found.extend(step.into_iter().zip(output.chunks_exact(width).map(bits)));
            }
            found
        };
        let alone = |chunk: usize| -> Vec<Vec<(u32, u32)>> {
            let of_each = |sequence| of_sequence(sequence, 0, length(sequence)).collect::<Vec<_>>();
            (0..3).flat_map(|sequence| of_each(sequence).chunks(chunk).map(<[_]>::to_vec).collect::<Vec<_>>()).collect()
        };
        let together = |step: u32| (0..3).flat_map(|s| of_sequence(s, 9 * step, length(s).min(9 * step + 9))).collect();
        let expected = run(alone(1000), false);
        assert_eq!(expected.len(), rows.len());
        let ways = [
            ("in chunks of 64", run(alone(64), false)),
            ("in chunks of 256, contexts whole", run(alone(256), true)),
            ("in company", run((0..89).map(together).collect(), false)),
        ];
        for (way, found) in ways {
            let other = expected.iter().find(|(row, bits)| found.get(row) != Some(bits)).map(|(row, _)| row);
            assert_eq!(other, None, "{} {way}: a (sequence, position) with other bits", case.name);
        }
    }
    assert_clean(&device);
}

#[test]
fn memory_out_of_the_processors_reach_holds_the_same() {
    let Some(mapped) = shared_device() else { return };
    let options = VulkanOptions { validation: true, force_staging: true, ..VulkanOptions::default() };
    let Some(staged) = own_device(options) else { return };
    // More than the stages of an upload hold, with rows that are not whole runs.
    let large = linear(Format::F32, 3000, 4097);
    let input = vec![random::activations(3 * 4097, 3)];
    let run = |device| {
        let op = OneOp::new(device, &large, None).unwrap();
        bits(&op.run(&CaseBatch::of_rows(3), RowCount::All(3), &input).unwrap()[0])
    };
    assert!(run(&staged) == run(&mapped), "a large weight");
    let cases = [cuelight_shaders::embed::cases(), attention::cases(), cuelight_shaders::rms_norm::cases()];
    for case in cases.iter().flat_map(|cases| cases.first()) {
        let run = |device| {
            let op = OneOp::new(device, &*case.op, case.cache.as_ref()).unwrap();
            let steps = case.steps.iter().map(|step| op.run(&step.batch, step.rows, &step.inputs).unwrap());
            steps.flatten().map(|output| bits(&output)).collect::<Vec<_>>()
        };
        assert!(run(&staged) == run(&mapped), "{} {}", case.op.name(), case.name);
    }
    assert_clean(&mapped);
    assert_clean(&staged);
}
