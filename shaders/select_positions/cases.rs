//! The expected results of [`SelectPositions`].
//!
//! All values are small integers, whose products and sums every backend and every type of cache has exactly. Many scores are then
//! equal, and the selected positions must be exactly those of the reference.

use std::ops::Range;

use super::{SelectPositions, reference};
use crate::cases::{Case, CaseBatch, CaseCache, CaseStep, Expected};
use crate::gpu::RowCount;
use crate::kv::{BLOCK_TOKENS, KvShape, KvType, SCALE_GROUP};
use crate::quant::random;
use crate::selection::Selection;

/// Every type of cache, with few and many heads; rows that select all of the positions that they see, and rows that select one
/// or some.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shapes = [
        ([4, 16, 16], 1),
        ([1, 8, 1], 1),
        ([64, 128, 64], 1),
        ([3, 40, 100], 1),
        ([9, 32, 2048], 1),
        ([5, 24, 64], 16),
        ([2, 8, 9], 3),
    ];
    let op = |shape| SelectPositions::new(1, shape).expect("the shape is valid");
    let of_positions = shapes.map(|(shape, pool)| (shape, op(shape).pooled(pool).expect("positions are whole pools")));
    let of_pools = [([64, 128, 30], 4), ([3, 40, 5], 32)].map(|(shape, pool)| (shape, op(shape).of_pools(pool)));
    let of_heads = [([4, 128, 96], 32, 1), ([3, 40, 10], 5, 2), ([9, 16, 128], 128, 1), ([1, 24, 48], 24, 2)];
    let of_heads = of_heads
        .map(|(shape, pool, last)| (shape, op(shape).of_each_head(pool, last).expect("positions are whole pools")));
    let ops: Vec<_> = of_positions.into_iter().chain(of_pools).chain(of_heads).collect();
    let of_type = |&kv_type: &KvType| {
        ops.clone().into_iter().map(move |(shape, op)| {
            let sequences = Sequences::new(op, &[271, 40], whole);
            let steps = [vec![(0, 0..270), (1, 0..17)], vec![(1, 17..40), (0, 270..271)]];
            let steps = steps.iter().map(|ranges| sequences.case_step(ranges)).collect();
            let cache = Some(sequences.cache(kv_type));
            let Selection { pool, unit, .. } = op.selection;
            Case { name: format!("{kv_type}, {shape:?}, {unit:?}, pools of {pool}"), op: Box::new(op), cache, steps }
        })
    };
    KvType::ALL.iter().flat_map(of_type).collect()
}

/// Integers from -2 to 2.
pub(super) fn whole(len: usize, seed: u64) -> Vec<f32> {
    random::activations(len, seed).iter().map(|value| (2.0 * value).round()).collect()
}

/// Sequences of random queries, keys and weights, in scattered blocks.
pub(super) struct Sequences {
    op: SelectPositions,
    block_tables: Vec<Vec<u32>>,
    query: Vec<Vec<f32>>,
    key: Vec<Vec<f32>>,
    weight: Vec<Vec<f32>>,
}

impl Sequences {
    /// Sequences of these lengths; `values(count, seed)` returns queries, keys and weights.
    pub fn new(op: SelectPositions, lengths: &[usize], values: impl Fn(usize, u64) -> Vec<f32>) -> Self {
        let blocks = lengths.iter().max().map_or(0, |longest| longest / BLOCK_TOKENS + 1);
        let count = lengths.len();
        let block = |sequence: usize, block: usize| (blocks * count - 1 - block * count - sequence) as u32;
        let of_each = |salt: u64, width: usize| -> Vec<Vec<f32>> {
            (0..).zip(lengths).map(|(sequence, length)| values(length * width, salt + 8 * sequence)).collect()
        };
        let (mut query, mut key) = (of_each(1, op.n_heads * op.key_dim), of_each(2, op.key_dim));
        // With 127 among 32 values, eight bits have the others exactly. It adds nothing to a product.
        query.iter_mut().for_each(|query| set_in_groups(query, op.key_dim, 0.0));
        key.iter_mut().for_each(|key| set_in_groups(key, op.key_dim, 127.0));
        let block_tables =
            (0..count).map(|sequence| (0..blocks).map(|index| block(sequence, index)).collect()).collect();
        Sequences { op, block_tables, query, key, weight: of_each(3, op.n_heads) }
    }

    /// A cache for the index keys of the sequences.
    pub fn cache(&self, kv_type: KvType) -> CaseCache {
        let layers = self.op.layer + 1;
        let blocks = self.block_tables.iter().map(Vec::len).sum();
        let indexes = vec![self.op.index(); layers];
        CaseCache { indexes, ..CaseCache::of_kv(vec![KvShape::NONE; layers], kv_type, blocks) }
    }

    /// The scores of each list of a row at a position of a sequence.
    pub fn scores(&self, sequence: usize, position: usize) -> Vec<Vec<f64>> {
        let row = |values: &[f32], width: usize| values[position * width..][..width].to_vec();
        let query = row(&self.query[sequence], self.op.n_heads * self.op.key_dim);
        if self.op.last_of_each_head().is_some() {
            return reference::scores_of_heads(&self.op, position, &query, &self.key[sequence]);
        }
        let weight = row(&self.weight[sequence], self.op.n_heads);
        vec![reference::scores(&self.op, position, &query, &weight, &self.key[sequence])]
    }

    /// The expected output of a row.
    fn expected(&self, sequence: usize, position: usize) -> Vec<Expected> {
        let of_list = |scores: Vec<f64>| {
            let mut output = vec![0.0; self.op.selection.most];
            let selected = reference::select(&self.op, &scores);
            output.iter_mut().zip(selected).for_each(|(output, position)| *output = position as f32);
            output
        };
        let output: Vec<f32> = self.scores(sequence, position).into_iter().flat_map(of_list).collect();
        Expected::exactly(&output)
    }

    /// A step of ranges of positions of sequences, with its expected outputs.
    pub fn case_step(&self, ranges: &[(usize, Range<usize>)]) -> CaseStep {
        let rows = || ranges.iter().flat_map(|(sequence, range)| range.clone().map(|position| (*sequence, position)));
        let gather = |source: &[Vec<f32>], width: usize| {
            ranges.iter().flat_map(|(s, range)| &source[*s][range.start * width..range.end * width]).copied().collect()
        };
        let sequences: Vec<u32> = rows().map(|(sequence, _)| sequence as u32).collect();
        let SelectPositions { n_heads, key_dim, .. } = self.op;
        let mut inputs = vec![gather(&self.query, n_heads * key_dim), gather(&self.key, key_dim)];
        if self.op.last_of_each_head().is_none() {
            inputs.push(gather(&self.weight, n_heads));
        }
        CaseStep {
            rows: RowCount::All(sequences.len()),
            inputs,
            expected: vec![rows().flat_map(|(sequence, position)| self.expected(sequence, position)).collect()],
            batch: CaseBatch {
                tokens: sequences.clone(),
                positions: rows().map(|(_, position)| position as u32).collect(),
                selected: (0..sequences.len() as u32).collect(),
                sequences,
                block_tables: self.block_tables.clone(),
                ..CaseBatch::default()
            },
        }
    }
}

/// Sets one value of each 32 of each head.
fn set_in_groups(values: &mut [f32], head_dim: usize, value: f32) {
    for group in values.chunks_mut(head_dim).flat_map(|head| head.chunks_mut(SCALE_GROUP)) {
        group[group.len() / 2] = value;
    }
}
