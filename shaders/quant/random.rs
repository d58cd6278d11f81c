//! Random weights of any format, for tests and benches.

use std::ops::RangeInclusive;

use crate::quant::Format;
use crate::weight::Weight;

/// The largest magnitude of a value of [`weight`].
pub const LIMIT: f32 = 4.0;

/// What the largest magnitude in a block of several values of [`weight`] exceeds.
const SMALLEST_LARGEST: f32 = 1e-3;

/// A weight of random blocks whose values are finite and at most [`LIMIT`] in magnitude.
///
/// The same seed gives the same weight. Only a few hundred different blocks are drawn: enough to tell rows apart, and a
/// large matrix is made quickly.
///
/// # Panics
/// When `columns` is not a whole number of blocks.
#[must_use]
pub fn weight(name: &str, format: Format, rows: usize, columns: usize, seed: u64) -> Weight {
    let mut random = SplitMix { state: seed };
    // A block that is tiny beside the others would hide what is wrong with it.
    let is_seen = |values: &[f32]| values.len() == 1 || values.iter().any(|value| value.abs() > SMALLEST_LARGEST);
    let is_within = |values: &[f32]| values.iter().all(|value| value.abs() <= LIMIT) && is_seen(values);
    let pool: Vec<Vec<u8>> = (0..DIFFERENT_BLOCKS).map(|_| block(format, &mut random, is_within)).collect();
    let blocks = rows * (columns / format.block_len());
    let mut bytes = Vec::with_capacity(blocks * format.block_bytes());
    for _ in 0..blocks {
        bytes.extend_from_slice(&pool[random.next() as usize % pool.len()]);
    }
    Weight::new(name, format, rows, columns, bytes.into()).expect("the bytes were counted from the shape")
}

/// How many different blocks a weight is made of: enough to tell rows apart, and soon drawn.
const DIFFERENT_BLOCKS: usize = 251;

/// Random weights as large as those of trained models, made as fast as memory takes them.
///
/// ```
/// use cuelight_shaders::quant::{Format, random::Stock};
///
/// let stock = Stock::new(Format::Q4_0, 7);
/// let mut bytes = vec![0; 64 * Format::Q4_0.block_bytes()];
/// stock.fill(1, &mut bytes);
/// ```
pub struct Stock {
    format: Format,
    blocks: Vec<u8>,
}

impl Stock {
    /// The root mean square of each block's values. That of trained models is near one over the square root of the row
    /// length, so that values stay about as large from layer to layer.
    pub const MAGNITUDE: RangeInclusive<f32> = 0.01..=0.04;

    /// Blocks in stock. The caches hold them, so that taking some costs little.
    const BYTES: usize = 1 << 18;

    /// The longest run of blocks that is taken at once.
    const RUN_BYTES: usize = 1 << 12;

    /// Draws the blocks; the same seed gives the same ones.
    #[must_use]
    pub fn new(format: Format, seed: u64) -> Self {
        let mut random = SplitMix { state: seed };
        let is_usual = |values: &[f32]| Self::MAGNITUDE.contains(&root_mean_square(values));
        let drawn: Vec<Vec<u8>> = (0..DIFFERENT_BLOCKS).map(|_| block(format, &mut random, is_usual)).collect();
        let mut blocks = Vec::with_capacity(Self::BYTES);
        for _ in 0..Self::BYTES / format.block_bytes() {
            blocks.extend_from_slice(&drawn[random.next() as usize % drawn.len()]);
        }
        Stock { format, blocks }
    }

    /// Fills `out` with runs of blocks from random places of the stock; the same seed gives the same bytes.
    pub fn fill(&self, seed: u64, out: &mut [u8]) {
        let mut random = SplitMix { state: seed };
        let block = self.format.block_bytes();
        let run_bytes = Self::RUN_BYTES / block * block;
        let places = (self.blocks.len() - run_bytes) / block;
        for run in out.chunks_mut(run_bytes) {
            let start = random.next() as usize % places * block;
            run.copy_from_slice(&self.blocks[start..start + run.len()]);
        }
    }
}

fn root_mean_square(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

/// `len` random values in -1..1.
#[must_use]
pub fn activations(len: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix { state: seed };
    (0..len).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Draws bits until they make a block of acceptable values, so that no format's layout needs to be known here.
fn block(format: Format, random: &mut SplitMix, is_acceptable: impl Fn(&[f32]) -> bool) -> Vec<u8> {
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

/// SplitMix64 (Steele, Lea & Flood 2014).
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
    fn weights_in_stock_are_as_large_as_trained_ones() {
        for format in Format::ALL.iter().copied() {
            let stock = Stock::new(format, 3);
            let (mut bytes, mut values) = (vec![0; 32 * format.block_bytes()], vec![0.0; 32 * format.block_len()]);
            stock.fill(1, &mut bytes);
            format.dequantize(&bytes, &mut values);
            assert!(Stock::MAGNITUDE.contains(&root_mean_square(&values)), "{format}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_bytes_and_another_gives_others() {
        let bytes = |stock: u64, seed: u64| {
            let mut bytes = vec![0; 100_000 / 18 * 18];
            Stock::new(Format::ALL[3], stock).fill(seed, &mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 2));
    }
}
