//! Portable Rust, vectorised by the compiler.

use std::hint::black_box;

use super::sizes::{READ_BYTES, ROUNDS};

/// The exclusive or of all words.
pub(super) fn read(blocks: &[[u8; READ_BYTES]]) -> u64 {
    const WORDS: usize = READ_BYTES / size_of::<u64>();
    let mut sums = [0_u64; WORDS];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.into_iter().fold(0, |sum, lane| sum ^ lane)
}

/// Multiplies and adds in float32; returns the number of operations.
pub(super) fn multiply_adds() -> u64 {
    // Eight registers of four lanes.
    const LANES: usize = 32;
    let (factor, term) = (black_box(0.5), black_box(1.0));
    let mut sums = [0.0_f32; LANES];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = *sum * factor + term;
        }
    }
    black_box(sums);
    2 * ROUNDS * LANES as u64
}
