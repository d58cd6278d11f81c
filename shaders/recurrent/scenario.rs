//! Steps of sequences that start, continue in place, keep checkpoints and go back to them: for the cases of ops with state.

#[cfg(test)]
pub(crate) use invariance::assert_invariant;

use std::collections::HashMap;

use super::part::NO_SLOT;
use crate::cases::{CaseBatch, CaseStep, Expected};
use crate::gpu::RowCount;
use crate::quant::random;

/// The slots that the steps use.
pub(crate) const SLOTS: usize = 6;

/// Rows of one sequence: their number, the slot before them, and the slots after some of them (rows so far, slot).
type Run = (usize, Option<u32>, &'static [(usize, u32)]);

const STEPS: &[&[Run]] = &[
    &[(5, None, &[(5, 0)]), (1, None, &[(1, 1)])],
    // In place; with a checkpoint; and a new sequence with a checkpoint after its first row.
    &[(1, Some(0), &[(1, 0)]), (9, Some(1), &[(2, 3), (9, 1)]), (2, None, &[(1, 4), (2, 2)])],
    // Back to a checkpoint, which stays; and the slot of the start gets a checkpoint.
    &[(3, Some(3), &[(3, 5)]), (1, Some(4), &[(1, 4)]), (17, Some(2), &[(1, 2), (17, 0)])],
    // Every row has a slot, as when drafts are verified; and a checkpoint that was overwritten since.
    &[(4, Some(5), &[(1, 5), (2, 3), (3, 1), (4, 4)]), (33, Some(2), &[(33, 2)]), (1, Some(0), &[(1, 0)])],
    &[(2, Some(3), &[(2, 3)]), (1, Some(2), &[(1, 2)])],
];

/// How the inputs of an op are drawn: values of input `index` with a width, for a number of rows.
pub(crate) struct Inputs<'a> {
    /// The width of each input.
    pub widths: &'a [usize],
    /// Changes a value between -1 and 1 of an input.
    pub scale: fn(usize, f32) -> f32,
}

impl<'a> Inputs<'a> {
    /// Values between -1 and 1.
    pub(crate) fn random(widths: &'a [usize]) -> Self {
        Inputs { widths, scale: |_, value| value }
    }

    fn draw(&self, rows: usize, seed: u64) -> Vec<Vec<f32>> {
        let draw = |(index, width): (usize, &usize)| {
            let values = random::activations(rows * width, seed << 8 | index as u64);
            values.into_iter().map(|value| (self.scale)(index, value)).collect()
        };
        self.widths.iter().enumerate().map(draw).collect()
    }

    /// One row of each input.
    fn row<'b>(&self, inputs: &'b [Vec<f32>], row: usize) -> Vec<&'b [f32]> {
        inputs.iter().zip(self.widths).map(|(input, width)| &input[row * width..][..*width]).collect()
    }
}

/// The steps, with the results of `reference`. It computes a row of the only output, and replaces the state before the
/// row with the one after it.
pub(crate) fn steps(
    state_len: usize,
    inputs: &Inputs<'_>,
    tolerance: f64,
    mut reference: impl FnMut(&mut Vec<f64>, &[&[f32]]) -> Vec<f64>,
) -> Vec<CaseStep> {
    let mut slots: HashMap<u32, Vec<f64>> = HashMap::new();
    let mut lengths = HashMap::new();
    let step = |(seed, runs): (usize, &&[Run])| {
        let batch = batch_of(runs, &mut lengths);
        let rows = batch.sequences.len();
        let values = inputs.draw(rows, seed as u64 + 1);
        let mut expected = Vec::new();
        let mut state = Vec::new();
        for row in 0..rows {
            let sequence = batch.sequences[row] as usize;
            if row == 0 || batch.sequences[row - 1] != batch.sequences[row] {
                state = slots.get(&batch.state_from[sequence]).cloned().unwrap_or_else(|| vec![0.0; state_len]);
            }
            expected.extend(reference(&mut state, &inputs.row(&values, row)));
            if batch.state_to[row] != NO_SLOT {
                slots.insert(batch.state_to[row], state.clone());
            }
        }
        CaseStep {
            batch,
            rows: RowCount::All(rows),
            inputs: values,
            expected: vec![Expected::within(tolerance, expected)],
        }
    };
    STEPS.iter().enumerate().map(step).collect()
}

/// The batch of some runs; `lengths` has the number of rows before each slot.
fn batch_of(runs: &[Run], lengths: &mut HashMap<u32, u32>) -> CaseBatch {
    let mut batch = CaseBatch::default();
    let before: Vec<u32> = runs.iter().map(|(_, from, _)| from.map_or(0, |slot| lengths[&slot])).collect();
    for (sequence, (rows, from, to)) in runs.iter().enumerate() {
        let first = batch.sequences.len();
        batch.sequences.extend(vec![sequence as u32; *rows]);
        batch.positions.extend((before[sequence]..).take(*rows));
        lengths.extend(to.iter().map(|(rows, slot)| (*slot, before[sequence] + *rows as u32)));
        batch.state_from.push(from.unwrap_or(NO_SLOT));
        batch.state_to.resize(first + rows, NO_SLOT);
        to.iter().for_each(|(rows, slot)| batch.state_to[first + rows - 1] = *slot);
    }
    batch.tokens = vec![0; batch.sequences.len()];
    batch.block_tables = vec![Vec::new(); runs.len()];
    batch
}

#[cfg(test)]
mod invariance {
    use super::{Inputs, NO_SLOT};
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::kv::KvCache;
    use crate::op::{Batch, CpuArgs, Op};
    use crate::recurrent::StateCache;
    use crate::testing::supported_kernels;
    use crate::tuning::Tuning;

    /// Runs one step of an op whose state is all of layer 0.
    fn step(op: &dyn Op, kernel: Kernel, states: &StateCache, batch: Batch<'_>, inputs: &[&[f32]]) -> Vec<f32> {
        let rows = batch.sequences.len();
        let widths: Vec<usize> = inputs.iter().map(|input| input.len() / rows).collect();
        let mut output = vec![f32::NAN; rows * op.output_widths(&widths).expect("the inputs fit")[0]];
        op.run_cpu(&mut CpuArgs {
            kernel,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team: &Solo,
            batch,
            kv: &KvCache::empty(),
            states,
            rows,
            scratch: &mut vec![f32::NAN; op.scratch_len(kernel, rows, rows)],
            inputs,
            outputs: &mut [&mut output],
        });
        output
    }

    /// Runs rows in chunks, next to another sequence. Every second chunk goes to another slot.
    fn in_chunks(
        op: &dyn Op,
        kernel: Kernel,
        states: &StateCache,
        all: &[Vec<f32>],
        widths: &[usize],
        chunk: usize,
    ) -> Vec<f32> {
        let rows = all[0].len() / widths[0];
        let mut output = Vec::new();
        let mut from = NO_SLOT;
        for (index, first) in (0..rows).step_by(chunk).enumerate() {
            let count = chunk.min(rows - first);
            let to = u32::from(index % 4 > 1);
            // The other sequence has one row, which is the same as the first of this chunk.
            let row = |row: usize| if row < count { first + row } else { first };
            let gather = |(input, width): (&Vec<f32>, &usize)| -> Vec<f32> {
                (0..=count).flat_map(|index| input[row(index) * width..][..*width].to_vec()).collect()
            };
            let inputs: Vec<Vec<f32>> = all.iter().zip(widths).map(gather).collect();
            let mut sequences = vec![0; count];
            sequences.push(1);
            let mut state_to = vec![NO_SLOT; count + 1];
            state_to[count - 1..].copy_from_slice(&[to, 2]);
            let positions: Vec<u32> = (first as u32..).take(count).chain([0]).collect();
            let batch = Batch {
                sequences: &sequences,
                positions: &positions,
                state_from: &[from, NO_SLOT],
                state_to: &state_to,
                ..Batch::default()
            };
            let mut rows = step(op, kernel, states, batch, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
            rows.truncate(rows.len() / (count + 1) * count);
            output.extend(rows);
            from = to;
        }
        output
    }

    /// Asserts that every row has the same bits in any chunks and next to another sequence.
    pub(crate) fn assert_invariant(op: &dyn Op, state_len: usize, inputs: &Inputs<'_>) {
        const ROWS: usize = 40;
        let values = inputs.draw(ROWS, 1);
        for kernel in supported_kernels() {
            let states = StateCache::new([state_len], 3);
            let bits = |chunk: usize| -> Vec<u32> {
                in_chunks(op, kernel, &states, &values, inputs.widths, chunk)
                    .iter()
                    .map(|value| value.to_bits())
                    .collect()
            };
            let whole = bits(ROWS);
            for chunk in [1, 2, 3, 7, 16, 33] {
                assert!(bits(chunk) == whole, "{kernel}: chunks of {chunk}");
            }
        }
    }
}
