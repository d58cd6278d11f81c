//! Random weights of any format, for tests and benches.

use crate::quant::Format;
use crate::weight::Weight;

/// The largest magnitude of a value of [`weight`].
pub const LIMIT: f32 = 4.0;

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
    let pool: Vec<Vec<u8>> = (0..251).map(|_| block(format, &mut random)).collect();
    let blocks = rows * (columns / format.block_len());
    let mut bytes = Vec::with_capacity(blocks * format.block_bytes());
    for _ in 0..blocks {
        bytes.extend_from_slice(&pool[random.next() as usize % pool.len()]);
    }
    Weight::new(name, format, rows, columns, bytes.into()).expect("the bytes were counted from the shape")
}

/// `len` random values in -1..1.
#[must_use]
pub fn activations(len: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix { state: seed };
    (0..len).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Draws bits until they make a block of acceptable values, so that no format's layout needs to be known here.
fn block(format: Format, random: &mut SplitMix) -> Vec<u8> {
    let mut bytes = vec![0; format.block_bytes()];
    let mut values = vec![0.0_f32; format.block_len()];
    loop {
        for byte in &mut bytes {
            *byte = random.next() as u8;
        }
        format.dequantize(&bytes, &mut values);
        if values.iter().all(|value| value.abs() <= LIMIT) {
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
