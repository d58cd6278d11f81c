//! Bitwise equal results in batches of any size, with any chunk size, and with or without staging buffers.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::cases::{Case, CaseBatch};
use cuelight_shaders::gpu::{Module, RowCount};
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::quant::{Format, random};
use cuelight_shaders::{attention, embed, rms_norm};

use super::one_op::{OneOp, bits, bucket};
use super::{assert_clean, own_device, sampled, shared_device};
use crate::backend::vulkan::{Device, VulkanOptions};

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
            // The last rows, so that a row's index in the batch changes with the count.
            let found = run(&input[(ROWS - rows) * COLUMNS..]);
            assert!(found == alone[(ROWS - rows) * OUTPUTS..], "{format}: different bits in a batch of {rows}");
        }
    }
    assert_clean(&device);
}

/// A row of a step: a sequence and a position in it.
type RowPosition = (u32, u32);

/// The rows of an attention case, to be run in other steps than those of the case.
struct Rows<'a> {
    case: &'a Case,
    /// The inputs of each row.
    inputs: HashMap<RowPosition, Vec<&'a [f32]>>,
}

/// The results of the rows, and the shaders that ran.
#[derive(Default)]
struct Found {
    bits: HashMap<RowPosition, Vec<u32>>,
    ran: HashSet<Module>,
}

/// The buckets in which steps run.
#[derive(Clone, Copy)]
enum Buckets {
    /// The bucket that an engine chooses; the op decides whether to use tiles.
    Own,
    /// The same bucket, with too little shared memory for tiles.
    RowByRow,
    /// A bucket of many rows, in which no context is split.
    Large,
}

impl<'a> Rows<'a> {
    fn of(case: &'a Case) -> Self {
        let mut inputs = HashMap::new();
        for step in &case.steps {
            let widths = step.input_widths();
            let positions = step.batch.sequences.iter().copied().zip(step.batch.positions.iter().copied());
            for (row, position) in positions.enumerate() {
                let of_row =
                    step.inputs.iter().zip(&widths).map(|(input, width)| &input[row * width..(row + 1) * width]);
                inputs.insert(position, of_row.collect());
            }
        }
        Rows { case, inputs }
    }

    /// The rows at some positions of a sequence, up to its end.
    fn rows_at(&self, sequence: u32, positions: Range<u32>) -> Vec<RowPosition> {
        positions.map(|position| (sequence, position)).filter(|row| self.inputs.contains_key(row)).collect()
    }

    /// Each sequence in separate steps, in chunks of `chunk` rows.
    fn alone(&self, chunk: usize) -> Vec<Vec<RowPosition>> {
        let of_sequence = |sequence| {
            self.rows_at(sequence, 0..LONGEST).chunks(chunk).map(<[RowPosition]>::to_vec).collect::<Vec<_>>()
        };
        (0..SEQUENCES).flat_map(of_sequence).collect()
    }

    /// All sequences in the same steps, each in chunks of `chunk` rows.
    fn together(&self, chunk: usize) -> Vec<Vec<RowPosition>> {
        let starts = (0..LONGEST).step_by(chunk);
        let of_step =
            |start| (0..SEQUENCES).flat_map(move |sequence| self.rows_at(sequence, start..start + chunk as u32));
        starts.map(|start| of_step(start).collect()).collect()
    }

    /// Runs the steps.
    fn run(&self, device: &Arc<Device>, steps: Vec<Vec<RowPosition>>, buckets: Buckets) -> Found {
        let mut op = OneOp::new(device, &*self.case.op, self.case.cache.as_ref()).unwrap();
        op.deterministic = true;
        let mut found = Found::default();
        for step in steps {
            let batch = CaseBatch {
                positions: step.iter().map(|(_, position)| *position).collect(),
                sequences: step.iter().map(|(sequence, _)| *sequence).collect(),
                block_tables: self.case.steps[0].batch.block_tables.clone(),
                ..CaseBatch::of_rows(step.len())
            };
            let input = |index: usize| step.iter().flat_map(|row| self.inputs[row][index]).copied().collect();
            let inputs: Vec<Vec<f32>> = (0..self.case.steps[0].inputs.len()).map(input).collect();
            let mut bucket = bucket(&batch);
            match buckets {
                Buckets::Own => {}
                Buckets::RowByRow => op.limits.shared_memory_bytes = 16 << 10,
                Buckets::Large => bucket.rows = 4096,
            }
            let output = op.run_in(bucket, &batch, RowCount::All(step.len()), &inputs).unwrap().swap_remove(0);
            found.ran.extend(op.ran.borrow().iter().copied());
            let width = output.len() / step.len();
            found.bits.extend(step.into_iter().zip(output.chunks_exact(width).map(bits)));
        }
        found
    }
}

/// The number of sequences of the long cases, and the length of the longest.
const SEQUENCES: u32 = 3;
const LONGEST: u32 = 800;

#[test]
fn a_row_of_attention_has_the_same_bits_with_any_chunks_tiles_and_splits() {
    let Some(device) = shared_device() else { return };
    // Rows that see later rows need these in the same step.
    let has_chunks = |case: &Case| !case.name.ends_with("both ways");
    let is_long = |case: &Case| case.steps.iter().any(|step| step.batch.context_tokens() == LONGEST as usize);
    let is_long = |case: &Case| has_chunks(case) && is_long(case);
    let cases = sampled(attention::cases().into_iter().filter(is_long).collect());
    assert!(!cases.is_empty());
    for case in &cases {
        let rows = Rows::of(case);
        let expected = rows.run(&device, rows.alone(LONGEST as usize), Buckets::RowByRow);
        assert_eq!(expected.bits.len(), rows.inputs.len());
        assert!(!expected.ran.contains(&Module::AttentionAttendTile));
        let (own, row_by_row) = (Buckets::Own, Buckets::RowByRow);
        let large = Buckets::Large;
        let variants = [
            ("tiles", rows.alone(LONGEST as usize), own, true, None),
            ("tiles, chunks of 77", rows.alone(77), own, true, Some(true)),
            ("tiles, chunks of 200, contexts not split", rows.alone(200), large, true, Some(false)),
            ("tiles, sequences together", rows.together(50), own, true, Some(true)),
            ("tiles and single rows", rows.together(39), large, true, None),
            ("tiles and single rows, larger chunks", rows.together(75), large, true, None),
            ("chunks of 64", rows.alone(64), row_by_row, false, Some(true)),
            ("sequences together", rows.together(9), row_by_row, false, Some(true)),
        ];
        for (variant, steps, buckets, tiles, split) in variants {
            let found = rows.run(&device, steps, buckets);
            let different = expected.bits.iter().find(|(row, bits)| found.bits.get(row) != Some(bits));
            assert_eq!(
                different.map(|(row, _)| row),
                None,
                "{} {variant}: a (sequence, position) with different bits",
                case.name
            );
            // Rows with selected positions are in tiles only where each sees all of its positions, and are split less often.
            if case.name.contains(", selected by ") {
                continue;
            }
            assert_eq!(found.ran.contains(&Module::AttentionAttendTile), tiles, "{variant}");
            let was_split = found.ran.contains(&Module::AttentionMerge);
            assert!(split.is_none_or(|split| split == was_split), "{variant}: split {was_split}");
        }
    }
    assert_clean(&device);
}

#[test]
fn memory_that_the_cpu_cannot_access_gives_the_same_results() {
    let Some(mapped) = shared_device() else { return };
    let options = VulkanOptions { validation: true, force_staging: true, ..VulkanOptions::default() };
    let Some(staged) = own_device(options) else { return };
    // Larger than the staging buffers of an upload, with rows whose size is not a multiple of any block.
    let large = linear(Format::F32, 3000, 4097);
    let input = vec![random::activations(3 * 4097, 3)];
    let run = |device| {
        let op = OneOp::new(device, &large, None).unwrap();
        bits(&op.run(&CaseBatch::of_rows(3), RowCount::All(3), &input).unwrap()[0])
    };
    assert!(run(&staged) == run(&mapped), "a large weight");
    let cases = [embed::cases(), attention::cases(), rms_norm::cases()];
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
