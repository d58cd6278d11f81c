//! The input of a product, rounded to 15 bits (two planes of 8-bit integers) or to 8 bits. With 8 bits the second plane
//! is zero, and no kernel reads it.
//!
//! Other engines use 8 bits. Half a step is then 0.4 % of the largest value of a block, and the noise accumulated over
//! the layers changed log-probabilities of real models by 0.03 to 0.08 nat per token (see the journal). With a second
//! plane the noise is below that of a float16 KV cache. Decoding is limited by memory bandwidth, so the second plane
//! costs nothing there.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, _mm_add_epi32, _mm_cvtsi128_si32, _mm_extract_epi32, _mm_max_epu32, _mm_shuffle_epi32, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_si128, _mm256_cvtps_epi32,
    _mm256_extracti128_si256, _mm256_hadd_epi32, _mm256_loadu_ps, _mm256_max_epu32, _mm256_mul_ps, _mm256_packs_epi16,
    _mm256_packs_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_storeu_si256,
    _mm256_sub_epi16,
};
use std::ops::Range;

use crate::cpu::{ActivationBits, Kernel, SharedMut, Team};

/// Columns of a block.
pub const BLOCK_LEN: usize = 32;
/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// A step of the high plane is `2^LOW_BITS` steps of the low plane.
pub const LOW_BITS: u32 = 7;
/// The largest magnitude of an integer.
const LARGEST: i32 = 127 << LOW_BITS;

/// 32 columns of one row: `x ≈ scale * q` with integers `q = 128 high + low`, or `q = high` with 8 bits. The error is at most
/// half a `scale`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// -127..=127.
    pub high: [i8; BLOCK_LEN],
    /// -64..=63; zeros with 8 bits.
    pub low: [i8; BLOCK_LEN],
    /// The largest magnitude of the block divided by the largest integer; 0 for a block of zeros.
    pub scale: f32,
    /// The sum of the integers, exact. As a float, because kernels multiply it with minima.
    pub sum: f32,
    /// The sums of the first and the last 16 integers.
    pub half_sums: [i32; 2],
}

impl Block {
    /// The sum of the integers.
    #[inline(always)]
    pub fn integer_sum(&self) -> i32 {
        self.half_sums[0].wrapping_add(self.half_sums[1])
    }
}

/// The size of a [`Block`] in float32 values, the unit of scratch memory.
const FLOATS_PER_BLOCK: usize = size_of::<Block>() / size_of::<f32>();

/// Scratch memory for the rounded rows, in float32 values.
#[must_use]
pub fn scratch_len(rows: usize, columns: usize) -> usize {
    rows * columns.div_ceil(BLOCK_LEN) * FLOATS_PER_BLOCK
}

/// Rounded rows, in panels of up to [`PANEL_ROWS`]. A panel is stored as [blocks of a row][its rows], so that a kernel
/// that iterates over the columns of all rows of a panel reads memory sequentially.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    blocks: &'a [Block],
    rows: usize,
    blocks_per_row: usize,
    bits: ActivationBits,
}

/// One panel.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    /// `[blocks of a row][rows]`
    pub blocks: &'a [Block],
    /// The number of rows.
    pub rows: usize,
    /// The precision of the rows.
    pub bits: ActivationBits,
}

/// Source rows to round, and the panel rows that are copies of each. A panel row must be a copy of one source, and
/// listed once.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The number of sources.
    pub count: usize,
    /// The values of a source.
    pub input: &'a (dyn Fn(usize) -> &'a [f32] + Sync),
    /// Appends the panel rows that are copies of a source.
    pub copies: &'a (dyn Fn(usize, &mut Vec<usize>) + Sync),
}

impl<'a> Sources<'a> {
    /// `count` sources, where panel row `i` is the only copy of source `i`.
    #[must_use]
    pub fn each_once(count: usize, input: &'a (dyn Fn(usize) -> &'a [f32] + Sync)) -> Self {
        Sources { count, input, copies: &|source, copies| copies.push(source) }
    }
}

impl<'a> Panels<'a> {
    /// Rounds `rows` rows of `columns` values each into `scratch`.
    ///
    /// A block depends only on its own 32 values.
    ///
    /// # Panics
    /// When `columns` is not a multiple of [`BLOCK_LEN`], `input` or `scratch` are too short, or the kernel is not an
    /// integer kernel or not supported.
    pub fn round(
        kernel: Kernel,
        bits: ActivationBits,
        team: &dyn Team,
        input: &[f32],
        rows: usize,
        columns: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        assert!(input.len() == rows * columns);
        let input = |row: usize| &input[row * columns..(row + 1) * columns];
        let sources = Sources::each_once(rows, &input);
        Panels::round_groups(kernel, bits, team, (rows, columns), sources, &|_| 0..rows, scratch)
    }

    /// Rounds rows of several products. The rows of a product are consecutive, and `group_of(row)` returns the rows of
    /// the product of `row`. [`Panels::of_group`] returns the panels of a product. Each row is a copy of a source,
    /// which is rounded once for all of its copies.
    ///
    /// # Panics
    /// As [`Panels::round`], and when a copy of a source is not below `rows`.
    pub fn round_groups(
        kernel: Kernel,
        bits: ActivationBits,
        team: &dyn Team,
        (rows, columns): (usize, usize),
        sources: Sources<'_>,
        group_of: &(dyn Fn(usize) -> Range<usize> + Sync),
        scratch: &'a mut [f32],
    ) -> Self {
        let blocks = round_rows(kernel, bits, team, (rows, columns), sources, group_of, scratch);
        Panels { blocks, rows, blocks_per_row: columns / BLOCK_LEN, bits }
    }

    /// The panels of one product, after [`Panels::round_groups`].
    #[must_use]
    pub fn of_group(&self, rows: Range<usize>) -> Self {
        let blocks = &self.blocks[rows.start * self.blocks_per_row..rows.end * self.blocks_per_row];
        Panels { blocks, rows: rows.len(), ..*self }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The precision of the rows.
    #[must_use]
    pub fn bits(&self) -> ActivationBits {
        self.bits
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.blocks_per_row * size_of::<Block>()
    }

    /// The panel that starts at row `first_row`, a multiple of [`PANEL_ROWS`].
    #[must_use]
    pub fn panel(&self, first_row: usize) -> Panel<'a> {
        assert!(first_row.is_multiple_of(PANEL_ROWS) && first_row < self.rows);
        let rows = PANEL_ROWS.min(self.rows - first_row);
        let blocks: Range<usize> = first_row * self.blocks_per_row..(first_row + rows) * self.blocks_per_row;
        Panel { blocks: &self.blocks[blocks], rows, bits: self.bits }
    }
}

/// Rounds rows into panels of their groups.
fn round_rows<'a>(
    kernel: Kernel,
    bits: ActivationBits,
    team: &dyn Team,
    (rows, columns): (usize, usize),
    sources: Sources<'_>,
    group_of: &(dyn Fn(usize) -> Range<usize> + Sync),
    scratch: &'a mut [f32],
) -> &'a [Block] {
    assert!(columns.is_multiple_of(BLOCK_LEN));
    assert!(
        kernel.is_integer() && kernel.is_supported(),
        "this CPU does not support the {kernel} kernel, or it is not an integer kernel"
    );
    let blocks = blocks_in(&mut scratch[..scratch_len(rows, columns)]);
    let blocks_per_row = columns / BLOCK_LEN;
    // A single row takes less time than scheduling a task.
    const ROWS_PER_TASK: usize = 4;
    let shared = SharedMut::new(&mut *blocks);
    let blocks_of = |row: usize| {
        assert!(row < rows);
        let group = group_of(row);
        let first_row = row - (row - group.start) % PANEL_ROWS;
        let stride = PANEL_ROWS.min(group.end - first_row);
        RowBlocks { first: first_row * blocks_per_row + row - first_row, stride }
    };
    team.for_each(sources.count.div_ceil(ROWS_PER_TASK), &|task| {
        let (mut copies, mut destinations) = (Vec::new(), Vec::new());
        for source in task * ROWS_PER_TASK..sources.count.min((task + 1) * ROWS_PER_TASK) {
            copies.clear();
            (sources.copies)(source, &mut copies);
            destinations.clear();
            destinations.extend(copies.iter().map(|row| blocks_of(*row)));
            let input = (sources.input)(source);
            assert_eq!(input.len(), columns);
            // SAFETY: an integer kernel of x86-64 requires AVX2, FMA and F16C, and the assertion above checks that it is
            // supported. The blocks of a row are written by one task only, that of its source.
            #[cfg_attr(not(target_arch = "x86_64"), expect(unused_unsafe, reason = "safe on other CPUs"))]
            unsafe {
                match bits {
                    ActivationBits::Fifteen => round_row::<false>(input, &shared, &destinations),
                    ActivationBits::Eight => round_row::<true>(input, &shared, &destinations),
                }
            }
        }
    });
    blocks
}

/// The blocks of a row: the index of the first, and the distance from one to the next.
struct RowBlocks {
    first: usize,
    stride: usize,
}

/// Reinterprets scratch memory as blocks.
fn blocks_in(scratch: &mut [f32]) -> &mut [Block] {
    const { assert!(align_of::<Block>() == align_of::<f32>()) }
    let blocks = scratch.len() / FLOATS_PER_BLOCK;
    // SAFETY: the memory has the size and alignment of that many blocks, every bit pattern of a block is valid, and the
    // memory is borrowed for the lifetime of the blocks.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), blocks) }
}

/// Blocks with smaller magnitudes are rounded to zeros, because the inverse of their scale would not be finite.
const SMALLEST: f32 = 1e-30;

/// The scale of a block and its inverse. `largest` is the bits of the largest magnitude of the block.
///
/// As integers, the bits of magnitudes have the order of their values, and NaN is above all others. So a block with
/// values that are not finite gets a scale that is not finite, and so do its results.
#[inline(always)]
fn scale_and_inverse<const EIGHT: bool>(largest: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest);
    let steps = const { if EIGHT { LARGEST >> LOW_BITS } else { LARGEST } } as f32;
    if largest < SMALLEST { (0.0, 0.0) } else { (largest / steps, steps / largest) }
}

/// Rounds 32 values. This is the definition; the AVX2 version gives the same bits.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn round_block<const EIGHT: bool>(input: &[f32; BLOCK_LEN]) -> Block {
    let largest = input.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let (scale, inverse) = scale_and_inverse::<EIGHT>(largest);
    let integers = input.map(|value| (value * inverse).round_ties_even() as i32);
    let (high, low) = if EIGHT {
        (integers, [0; BLOCK_LEN])
    } else {
        let high = integers.map(|integer| (integer + (1 << (LOW_BITS - 1))) >> LOW_BITS);
        (high, std::array::from_fn(|index| (integers[index] - (high[index] << LOW_BITS)) as i8))
    };
    let sum = |integers: &[i32]| integers.iter().sum::<i32>();
    let (high, half_sums) = (high.map(|high| high as i8), [sum(&integers[..16]), sum(&integers[16..])]);
    Block { high, low, scale, sum: sum(&integers) as f32, half_sums }
}

/// Rounds a row into the blocks of each destination. No other thread may access these blocks at the same time.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
fn round_row<const EIGHT: bool>(input: &[f32], blocks: &SharedMut<'_, Block>, destinations: &[RowBlocks]) {
    let Some((first, others)) = destinations.split_first() else { return };
    for (index, values) in input.as_chunks().0.iter().enumerate() {
        // SAFETY: the caller guarantees that no other thread accesses the blocks of the destinations.
        let [block] = (unsafe { blocks.slice(first.first + index * first.stride, 1) }) else { return };
        #[cfg(target_arch = "x86_64")]
        round_block_avx2::<EIGHT>(values, block);
        #[cfg(not(target_arch = "x86_64"))]
        round_block::<EIGHT>(values).clone_into(block);
        for copy in others {
            // SAFETY: as above.
            let copies = unsafe { blocks.slice(copy.first + index * copy.stride, 1) };
            copies.fill(*block);
        }
    }
}

/// Rounds 32 values with the same bits as `round_block`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round_block_avx2<const EIGHT: bool>(input: &[f32; BLOCK_LEN], block: &mut Block) {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    // SAFETY: each of the four loads reads eight of the 32 values.
    let values: [__m256; 4] = std::array::from_fn(|eight| unsafe { _mm256_loadu_ps(input.as_ptr().add(8 * eight)) });
    let [a, b, c, d] = values.map(|values| _mm256_and_si256(_mm256_castps_si256(values), magnitude));
    let largest = _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d));
    let largest = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    let (scale, inverse) = scale_and_inverse::<EIGHT>(_mm_cvtsi128_si32(largest) as u32);

    let inverse = _mm256_set1_ps(inverse);
    let [a, b, c, d] = values.map(|values| _mm256_cvtps_epi32(_mm256_mul_ps(values, inverse)));
    let integers = [_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)];
    let (high, low) = if EIGHT {
        (integers, [_mm256_setzero_si256(); 2])
    } else {
        let half_step = _mm256_set1_epi16(1 << (LOW_BITS - 1));
        let high = integers.map(|integers| _mm256_srai_epi16::<7>(_mm256_add_epi16(integers, half_step)));
        (high, [0, 1].map(|half| _mm256_sub_epi16(integers[half], _mm256_slli_epi16::<7>(high[half]))))
    };
    for (out, [ab, cd]) in [(&mut block.high, high), (&mut block.low, low)] {
        // Packing works within each half of a register; the permutation restores the order of the groups of four.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
        // SAFETY: `out` has the 32 bytes of the register.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
    }

    // Lanes 0 and 4 contain partial sums of the first half, lanes 1 and 5 those of the second.
    let sums = _mm256_hadd_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    let sums = _mm256_hadd_epi32(sums, sums);
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    block.scale = scale;
    block.half_sums = [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)];
    block.sum = block.integer_sum() as f32;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::Solo;
    use crate::quant::random;

    fn integer_kernels() -> impl Iterator<Item = Kernel> {
        Kernel::ALL.iter().copied().filter(|kernel| kernel.is_integer() && kernel.is_supported())
    }

    fn rounded(kernel: Kernel, bits: ActivationBits, input: &[f32], rows: usize) -> Vec<Vec<Block>> {
        let columns = input.len() / rows;
        let mut scratch = vec![f32::NAN; scratch_len(rows, columns)];
        let panels = Panels::round(kernel, bits, &Solo, input, rows, columns, &mut scratch);
        let block = |row: usize, index: usize| {
            let panel = panels.panel(row - row % PANEL_ROWS);
            panel.blocks[index * panel.rows + row % PANEL_ROWS]
        };
        (0..rows).map(|row| (0..columns / BLOCK_LEN).map(|index| block(row, index)).collect()).collect()
    }

    proptest! {
        #[test]
        fn rounding_errors_are_at_most_half_a_step_and_kernels_agree(
            rows in 1..40_usize,
            blocks in 1..5_usize,
            exponent in -45..38_i32,
            seed in any::<u64>(),
            bits in prop::sample::select(ActivationBits::ALL),
        ) {
            let columns = blocks * BLOCK_LEN;
            let scale = 10.0_f64.powi(exponent) as f32;
            let input: Vec<f32> = random::activations(rows * columns, seed).iter().map(|x| x * scale).collect();
            let round = if bits == ActivationBits::Eight { round_block::<true> } else { round_block::<false> };
            let (high_step, largest) = if bits == ActivationBits::Eight { (1, LARGEST >> LOW_BITS) } else { (1 << LOW_BITS, LARGEST) };
            let blocks_of = |row: &[f32]| row.as_chunks().0.iter().map(round).collect::<Vec<_>>();
            let expected: Vec<Vec<Block>> = input.chunks_exact(columns).map(blocks_of).collect();
            for (row, blocks) in input.chunks_exact(columns).zip(&expected) {
                for (values, block) in row.chunks_exact(BLOCK_LEN).zip(blocks) {
                    let integers: Vec<i32> =
                        block.high.iter().zip(&block.low).map(|(high, low)| i32::from(*high) * high_step + i32::from(*low)).collect();
                    for (&x, &q) in values.iter().zip(&integers) {
                        let error = (f64::from(x) - f64::from(block.scale) * f64::from(q)).abs();
                        // Scale, inverse and product are rounded too, which adds up to a hundredth of a step.
                        prop_assert!(error <= 0.51 * f64::from(block.scale) + 1e-30, "{x} was rounded to {q} steps of {}", block.scale);
                        prop_assert!(q.abs() <= largest);
                    }
                    prop_assert!(bits == ActivationBits::Fifteen || block.low == [0; BLOCK_LEN], "no kernel reads the low plane");
                    let sum = |integers: &[i32]| integers.iter().sum::<i32>();
                    prop_assert_eq!(f64::from(block.sum), f64::from(sum(&integers)));
                    prop_assert_eq!(block.integer_sum(), sum(&integers));
                    prop_assert_eq!(block.half_sums, [sum(&integers[..16]), sum(&integers[16..])]);
                }
            }
            for kernel in integer_kernels() {
                prop_assert_eq!(&rounded(kernel, bits, &input, rows), &expected, "{}", kernel);
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_give_a_scale_that_is_not_finite() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut input = [1.0; BLOCK_LEN];
            input[20] = value;
            for kernel in integer_kernels() {
                let rounded = rounded(kernel, ActivationBits::Fifteen, &input, 1);
                assert!(!rounded[0][0].scale.is_finite(), "{kernel}: {value}");
            }
        }
    }
}
