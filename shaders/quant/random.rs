//! Random weights of any format, for tests and benches.

use std::ops::RangeInclusive;

use crate::quant::Format;
use crate::weight::Weight;

/// The largest magnitude of a value in a [`weight`].
pub const LIMIT: f32 = 4.0;

/// In a [`weight`], at least one value of each block of several values has a larger magnitude than this.
const LEAST_PEAK: f32 = 1e-3;

/// A weight of random blocks whose values are finite and at most [`LIMIT`] in magnitude.
///
/// The same seed gives the same weight. A weight repeats a few hundred different blocks: that is enough to tell rows
/// apart, and a large matrix is generated quickly.
///
/// # Panics
/// When `columns` is not a whole number of blocks.
#[must_use]
pub fn weight(name: &str, format: Format, rows: usize, columns: usize, seed: u64) -> Weight {
    let mut random = SplitMix { state: seed };
    // A test would not notice an error in a block whose values are tiny compared with those of other blocks.
    let is_significant = |values: &[f32]| values.len() == 1 || values.iter().any(|value| value.abs() > LEAST_PEAK);
    let is_within = |values: &[f32]| values.iter().all(|value| value.abs() <= LIMIT) && is_significant(values);
    let drawn: Vec<Vec<u8>> = (0..DISTINCT_BLOCKS).map(|_| random_block(format, &mut random, is_within)).collect();
    let blocks = rows * (columns / format.block_len());
    let mut bytes = Vec::with_capacity(blocks * format.block_bytes());
    for _ in 0..blocks {
        bytes.extend_from_slice(&drawn[random.next() as usize % drawn.len()]);
    }
    Weight::new(name, format, rows, columns, bytes.into()).expect("the byte count follows from the shape")
}

/// The number of different blocks in a weight: enough to tell rows apart, and quick to draw.
const DISTINCT_BLOCKS: usize = 251;

/// A pool of random blocks whose values are about as large as those of trained models.
///
/// It fills whole checkpoints with weights at memory bandwidth: blocks are drawn once and then copied.
///
/// ```
/// use cuelight_shaders::quant::{Format, random::RandomBlocks};
///
/// let pool = RandomBlocks::new(Format::Q4_0, 7);
/// let mut bytes = vec![0; 64 * Format::Q4_0.block_bytes()];
/// pool.fill(1, &mut bytes);
/// ```
pub struct RandomBlocks {
    format: Format,
    blocks: Vec<u8>,
}

impl RandomBlocks {
    /// The range of the root mean square of each block. In trained models it is near `1 / sqrt(row length)`, which
    /// keeps activations about equally large from layer to layer.
    pub const MAGNITUDE: RangeInclusive<f32> = 0.01..=0.04;

    /// Bytes of the pool. It fits into a CPU's caches, so that copying from it is cheap.
    const POOL_BYTES: usize = 1 << 18;

    /// The longest run of blocks that is copied at once.
    const RUN_BYTES: usize = 1 << 12;

    /// Draws the pool. The same seed gives the same blocks.
    #[must_use]
    pub fn new(format: Format, seed: u64) -> Self {
        let mut random = SplitMix { state: seed };
        let is_usual = |values: &[f32]| Self::MAGNITUDE.contains(&root_mean_square(values));
        let drawn: Vec<Vec<u8>> = (0..DISTINCT_BLOCKS).map(|_| random_block(format, &mut random, is_usual)).collect();
        let mut blocks = Vec::with_capacity(Self::POOL_BYTES);
        for _ in 0..Self::POOL_BYTES / format.block_bytes() {
            blocks.extend_from_slice(&drawn[random.next() as usize % drawn.len()]);
        }
        RandomBlocks { format, blocks }
    }

    /// Fills `out` with runs of blocks from random positions of the pool. The same seed gives the same bytes.
    ///
    /// `out` should be a whole number of blocks; otherwise its last block is incomplete.
    pub fn fill(&self, seed: u64, out: &mut [u8]) {
        let mut random = SplitMix { state: seed };
        let block = self.format.block_bytes();
        let run_bytes = Self::RUN_BYTES / block * block;
        let starts = (self.blocks.len() - run_bytes) / block;
        for run in out.chunks_mut(run_bytes) {
            let start = random.next() as usize % starts * block;
            run.copy_from_slice(&self.blocks[start..start + run.len()]);
        }
    }
}

fn root_mean_square(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

/// `len` random values in `-1.0..1.0`. The same seed gives the same values.
#[must_use]
pub fn activations(len: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix { state: seed };
    (0..len).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Draws random bytes until they decode to acceptable values. This works for every format without knowing its layout.
fn random_block(format: Format, random: &mut SplitMix, is_acceptable: impl Fn(&[f32]) -> bool) -> Vec<u8> {
    let mut bytes = vec![0; format.block_bytes()];
    let mut values = vec![0.0_f32; format.block_len()];
    loop {
        for byte in &mut bytes {
            *byte = random.next() as u8;
        }
        format.dequantize(&bytes, &mut values);
        if is_acceptable(&values) {
            return bytes;
        }
    }
}

/// The random number generator SplitMix64 (Steele, Lea & Flood 2014).
struct SplitMix {
    state: u64,
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_weights_are_as_large_as_those_of_trained_models() {
        for format in Format::ALL.iter().copied() {
            let pool = RandomBlocks::new(format, 3);
            let (mut bytes, mut values) = (vec![0; 32 * format.block_bytes()], vec![0.0; 32 * format.block_len()]);
            pool.fill(1, &mut bytes);
            format.dequantize(&bytes, &mut values);
            assert!(RandomBlocks::MAGNITUDE.contains(&root_mean_square(&values)), "{format}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_bytes_and_different_seeds_give_different_bytes() {
        let bytes = |pool: u64, seed: u64| {
            let mut bytes = vec![0; 5_000 * Format::Q4_0.block_bytes()];
            RandomBlocks::new(Format::Q4_0, pool).fill(seed, &mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 2));
    }
}
