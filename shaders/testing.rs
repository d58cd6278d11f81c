//! Helpers that the tests of the ops share.

use crate::cpu::{ActivationBits, Kernel, Solo};
use crate::kv::KvCache;
use crate::op::{Batch, CpuArgs, Op};
use crate::recurrent::StateCache;
use crate::tuning::Tuning;

/// The kernels that this machine can run.
pub fn supported_kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported())
}

/// `len` values around 0, the same for the same seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Asserts that each value is within `tolerance * max(1, |expected|)` of the expected one.
#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "value {index} is {found}, but must be {expected}");
    }
}

/// Runs an op that needs no cache over rows at positions 0, 1, … of one sequence.
pub fn run(op: &dyn Op, kernel: Kernel, rows: usize, inputs: &[(&[f32], usize)]) -> Vec<Vec<f32>> {
    let widths: Vec<usize> = inputs.iter().map(|(_, width)| *width).collect();
    let widths = op.output_widths(&widths).expect("the inputs of the test fit the op");
    let positions: Vec<u32> = (0..rows as u32).collect();
    let zeros = vec![0; rows];
    let batch = Batch {
        tokens: &zeros,
        positions: &positions,
        sequences: &zeros,
        block_tables: &[&[]],
        selected: &positions,
        hidden: &[],
        ..Batch::default()
    };
    let mut outputs: Vec<Vec<f32>> = widths.iter().map(|width| vec![f32::NAN; rows * width]).collect();
    let mut output_slices: Vec<&mut [f32]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(|(values, _)| *values).collect();
    let kv = KvCache::empty();
    op.run_cpu(&mut CpuArgs {
        kernel,
        activation_bits: ActivationBits::default(),
        tuning: Tuning::default(),
        team: &Solo,
        batch,
        kv: &kv,
        states: &StateCache::empty(),
        rows,
        scratch: &mut vec![f32::NAN; op.scratch_len(kernel, rows, rows)],
        inputs: &inputs,
        outputs: &mut output_slices,
    });
    outputs
}
