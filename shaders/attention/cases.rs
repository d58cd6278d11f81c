//! The expected results of [`Attention`].
//!
//! Keys and values are multiples of 1/128 with a maximum of 127/128 in every group of 32. Every type of cache stores
//! them exactly, so the same tolerance applies to all types. One case for each type has other values, and the tolerance
//! of its rounding.

use std::ops::Range;

use super::{Attention, Cell, EachOther, KvShape, KvType, RowsInStep, Window, reference};
use crate::cases::{Case, CaseBatch, CaseCache, CaseStep, Expected};
use crate::fusion::FusedCase;
use crate::gpu::RowCount;
use crate::kv::{BLOCK_TOKENS, SCALE_GROUP};
use crate::op::Sight::{self, Before, Canvas};
use crate::quant::random;
use crate::rope::{self, Rope, RopeAxes, RopePairs};
use crate::selection::Selection;

/// Every type of cache with heads of all lengths, groups, windows and caps. Contexts end before, at and after the
/// border of a piece, with few rows (whose contexts are split into pieces) and with many (whose contexts are not).
#[must_use]
pub fn cases() -> Vec<Case> {
    // (head_dim, KV heads, group, window, cap)
    let shapes = [
        (16, 2, 1, None, None),
        (40, 1, 3, Some(20), None),
        (64, 2, 8, None, Some(30.0)),
        (80, 3, 3, Some(257), None),
        (128, 1, 12, None, None),
        (256, 1, 8, Some(100), Some(50.0)),
        (512, 1, 3, None, None),
        (1, 1, 1, Some(1), None),
    ];
    let of_type = |&kv_type: &KvType| {
        let shape = move |(head_dim, n_kv_heads, group, window, softcap)| {
            let attention = shaped(head_dim, n_kv_heads, group, window, softcap);
            case(&Sequences::new(attention, &[271, 40], exact_values), kv_type, 2e-5, &two_sequences())
        };
        let long = |attention| {
            case(&Sequences::new(attention, &[800, 301, 40], exact_values), kv_type, 2e-5, &three_sequences())
        };
        let latent = with_sinks(of_shape(KvShape::latent(48, 40), 16, Some(300), Some(30.0)));
        let long = [shaped(64, 2, 3, None, None), with_slopes(shaped(16, 2, 2, None, None)), latent].map(long);
        let rounded =
            Sequences::new(shaped(64, 2, 2, None, None), &[271, 40], |_, len, seed| random::activations(len, seed));
        let rounded = case(&rounded, kv_type, rounding(kv_type), &two_sequences());
        let other =
            |attention| case(&Sequences::new(attention, &[271, 40], exact_values), kv_type, 2e-5, &two_sequences());
        let both_ways = |attention| {
            let attention = Attention { sees_later: true, ..attention };
            case(&Sequences::new(attention, &[800, 271, 40, 1], exact_values), kv_type, 2e-5, &whole_sequences())
        };
        let both_ways = [
            shaped(64, 2, 1, None, None),
            shaped(32, 1, 3, None, Some(30.0)),
            shaped(64, 1, 4, Some(70), None),
            with_sinks(shaped(16, 2, 2, Some(300), None)),
            with_slopes(shaped(32, 2, 2, None, None)),
        ]
        .map(both_ways);
        let selected = selected_forms().map(|attention| {
            case(&Sequences::new(attention, &[800, 301, 40], exact_values), kv_type, 2e-5, &three_sequences())
        });
        let pooled = pooled_forms().map(|attention| {
            case(&Sequences::new(attention, &[800, 301, 40], exact_values), kv_type, 2e-5, &three_sequences())
        });
        let sights = [
            shaped(64, 2, 4, Some(100), None),
            shaped(256, 1, 2, None, Some(30.0)),
            of_shape(KvShape::latent(48, 40), 16, Some(300), None),
            Attention { each_other: EachOther::FromWindow, ..shaped(64, 2, 4, Some(100), None) },
            Attention { each_other: EachOther::Before, ..shaped(32, 1, 3, None, None) },
        ]
        .map(|attention| sight_case(&Sequences::new(attention, &[800, 301, 40], exact_values), kv_type));
        let forms = other_forms().map(other).into_iter().chain(both_ways).chain(selected).chain(pooled).chain(sights);
        shapes.map(shape).into_iter().chain(long).chain([rounded]).chain(forms)
    };
    KvType::ALL.iter().flat_map(of_type).collect()
}

/// Attention to selected positions only.
fn selected_forms() -> [Attention; 7] {
    [
        with_selection(of_shape(KvShape::latent(48, 40), 6, None, None), Selection::new(100, 1)),
        with_selection(with_sinks(of_shape(KvShape::latent(576, 512), 18, None, Some(30.0))), Selection::new(300, 1)),
        with_selection(shaped(40, 2, 3, None, None), Selection::new(20, 1)),
        with_selection(of_shape(KvShape::latent(40, 40), 5, None, None), Selection::new(96, 16)),
        with_selection(shaped(64, 2, 4, None, None), Selection::with_last(3, 32, 1, 2)),
        with_selection(with_sinks(shaped(40, 4, 2, None, Some(30.0))), Selection::with_last(2, 9, 2, 2)),
        with_selection(shaped(16, 3, 18, None, None), Selection::with_last(2, 128, 1, 3)),
    ]
}

/// Attention to entries of pools and to a window: of few and of many heads, all pools or selected ones, a block has several pools
/// or a pool several blocks.
fn pooled_forms() -> [Attention; 4] {
    let of_pools = |dim: usize, pool: usize| KvShape::latent(dim, dim).with_pools(pool).expect("the pool fits a block");
    [
        of_shape(of_pools(40, 4), 5, Some(20), None),
        with_selection(with_sinks(of_shape(of_pools(64, 4), 9, Some(30), None)), Selection::of_pools(37, 4)),
        with_sinks(of_shape(of_pools(32, 32), 4, Some(128), Some(30.0))),
        with_selection(of_shape(of_pools(512, 8), 18, Some(12), None), Selection::of_pools(6, 8)),
    ]
}

/// The cases that matrices of float16 can compute, with a tolerance for rounded queries and weights. Those of long heads are
/// left out: a software device compiles their unrolled products for minutes.
#[must_use]
pub fn half_cases() -> Vec<Case> {
    const LONGEST: usize = 64;
    // Queries round to a part of 2^11, which changes scores of up to 3 sqrt(key_dim) / 2 or so by less than 4e-3.
    const OF_HALVES: f64 = 8e-3;
    let is_short = |cache: &CaseCache| cache.layers().iter().all(|layer| layer.kv.key_dim <= LONGEST);
    let of_halves =
        |case: &Case| case.cache.as_ref().is_some_and(|cache| cache.kv_type != KvType::F32 && is_short(cache));
    let mut cases: Vec<Case> = cases().into_iter().filter(of_halves).collect();
    let expected = cases.iter_mut().flat_map(|case| &mut case.steps).flat_map(|step| &mut step.expected);
    expected.flatten().for_each(|expected| expected.tolerance += OF_HALVES);
    cases
}

/// Sinks, slopes, keys and values of different lengths, values that are part of their keys, and other windows.
fn other_forms() -> [Attention; 13] {
    let unequal = |n_kv_heads, key_dim, value_dim| KvShape { value_dim, ..KvShape::grouped(n_kv_heads, key_dim) };
    [
        with_sinks(shaped(64, 2, 4, Some(128), None)),
        with_sinks(shaped(32, 1, 3, None, Some(30.0))),
        of_shape(unequal(2, 192, 128), 1, None, None),
        with_sinks(of_shape(unequal(1, 24, 72), 5, Some(20), None)),
        of_shape(KvShape::latent(576, 512), 18, None, None),
        within(Window::Chunk(50), shaped(32, 2, 2, None, None)),
        within(Window::Chunk(256), shaped(16, 1, 4, None, None)),
        windowed(shaped(64, 2, 4, Some(128), None)),
        windowed(within(Window::Chunk(50), shaped(32, 2, 2, None, None))),
        within(Window::From(50), shaped(32, 2, 1, None, None)),
        within(Window::Before(300), shaped(64, 2, 1, None, None)),
        with_slopes(shaped(32, 2, 3, None, None)),
        with_slopes(with_sinks(shaped(16, 1, 5, Some(100), Some(30.0)))),
    ]
}

/// The same in a layer that keeps the positions of the window only.
fn windowed(attention: Attention) -> Attention {
    Attention { kv: attention.kv.windowed(true), ..attention }
}

/// Attention with a fused rotation: every pairing, whole heads and parts of them, heads that are not whole quads, keys
/// and values of different lengths, every type of cache.
pub fn rotated_cases() -> Vec<FusedCase> {
    let unequal = of_shape(KvShape { value_dim: 72, ..KvShape::grouped(1, 24) }, 3, None, None);
    let shapes = [
        (shaped(64, 2, 4, None, None), 32),
        (shaped(128, 1, 2, Some(100), None), 64),
        (shaped(40, 2, 1, None, None), 10),
        (shaped(7, 1, 3, None, None), 2),
        (with_sinks(unequal), 12),
    ];
    let of_type = |&kv_type: &KvType| {
        let pairings = [RopePairs::Halves, RopePairs::Interleaved];
        let of_shape = move |(attention, pairs): (Attention, usize)| {
            pairings.map(|pairing| rotated_case(&attention, (pairs, pairing, RopeAxes::Time), kv_type))
        };
        let axes = [RopeAxes::Runs([8, 12, 12]), RopeAxes::InTurns([11, 10])].into_iter().flat_map(move |axes| {
            pairings.map(|pairing| rotated_case(&shaped(64, 2, 4, None, None), (32, pairing, axes), kv_type))
        });
        // Quarters that are whole quads, that are not, and of a part of the head.
        let quarters = [(64, 32), (72, 36), (40, 10)].map(|(head_dim, pairs)| {
            let axes = RopeAxes::Runs([0, pairs as u32 / 2, pairs as u32 / 2]);
            rotated_case(&shaped(head_dim, 2, 2, None, None), (pairs, RopePairs::Quarters, axes), kv_type)
        });
        shapes.clone().into_iter().flat_map(of_shape).chain(axes).chain(quarters)
    };
    KvType::ALL.iter().flat_map(of_type).collect()
}

fn rotated_case(
    attention: &Attention,
    (pairs, pairing, axes): (usize, RopePairs, RopeAxes),
    kv_type: KvType,
) -> FusedCase {
    // Powers of two, so that float32 represents the angle of any position exactly.
    let frequencies = (0..pairs).map(|pair| 0.5_f32.powi(pair as i32 % 16)).collect();
    let rope = Rope::new(attention.kv.key_dim, pairing, frequencies, 1.1).expect("pairs are of the head");
    let rope = rope.with_axes(axes);
    let projected = Sequences::new(attention.clone(), &[271, 40], |_, len, seed| random::activations(len, seed));
    let rotated = projected.rotated(&rope);
    // The error of a rotation changes every score, and rotated keys are larger.
    let tolerance = (2.0 * rounding(kv_type)).max(2e-4);
    let step = |ranges: &Ranges| {
        let mut step = CaseStep { inputs: projected.inputs(ranges), ..rotated.case_step(ranges, tolerance) };
        if axes != RopeAxes::Time {
            step.batch.rope_positions = step.batch.positions.iter().copied().map(rope::axes_of).collect();
        }
        step
    };
    let steps = two_sequences().iter().map(step).collect();
    let name = format!("{kv_type}, {pairing:?}, {axes:?}, {pairs} pairs of {:?}", attention.kv);
    let cache = Some(CaseCache::of_kv(projected.shapes(), kv_type, projected.n_blocks()));
    FusedCase::new(&name, rope, attention.clone(), cache, steps)
}

/// The tolerance of a result for keys and values in -1..1 that the cache rounds.
pub(super) fn rounding(kv_type: KvType) -> f64 {
    match kv_type {
        KvType::F32 => 2e-5,
        KvType::F16 => 4e-3,
        KvType::Q8_0 => 6e-2,
    }
}

/// Rows of a step: sequences and ranges of their positions.
type Ranges = Vec<(usize, Range<usize>)>;

fn two_sequences() -> Vec<Ranges> {
    vec![vec![(0, 0..270), (1, 0..17)], vec![(1, 17..40), (0, 270..271)]]
}

fn three_sequences() -> Vec<Ranges> {
    vec![
        vec![(0, 0..1), (1, 0..5)],
        vec![(0, 1..255), (2, 0..17)],
        vec![(0, 255..256)],
        vec![(0, 256..257), (2, 17..18), (1, 5..300)],
        vec![(1, 300..301), (0, 257..799)],
        vec![(2, 18..40), (0, 799..800)],
    ]
}

/// Steps that have all rows of their sequences: few rows of short contexts, and many of long ones.
fn whole_sequences() -> Vec<Ranges> {
    vec![vec![(3, 0..1)], vec![(2, 0..40), (3, 0..1)], vec![(1, 0..271), (3, 0..1), (0, 0..800), (2, 0..40)]]
}

/// An attention in layer 1, whose scores are large enough to distinguish positions.
pub(super) fn shaped(
    head_dim: usize,
    n_kv_heads: usize,
    group: usize,
    window: Option<usize>,
    softcap: Option<f32>,
) -> Attention {
    of_shape(KvShape::grouped(n_kv_heads, head_dim), group, window, softcap)
}

/// An attention with heads of any shape.
pub(super) fn of_shape(kv: KvShape, group: usize, window: Option<usize>, softcap: Option<f32>) -> Attention {
    let scale = 3.0 / (kv.key_dim as f32).sqrt();
    let window = window.map(Window::Last);
    let (n_heads, sees_later) = (kv.n_kv_heads * group, false);
    Attention {
        layer: 1,
        stores: true,
        n_heads,
        kv,
        scale,
        window,
        sees_later,
        each_other: EachOther::All,
        softcap,
        sinks: None,
        slopes: None,
        selection: None,
    }
}

/// The same attention with another window.
pub(super) fn within(window: Window, attention: Attention) -> Attention {
    Attention { window: Some(window), ..attention }
}

/// The same attention with sinks, some far below all scores and some above.
pub(super) fn with_sinks(attention: Attention) -> Attention {
    let sinks = (0..attention.n_heads).map(|head| [2.5, -1.0, 40.0, -90.0][head % 4]).collect();
    Attention { sinks: Some(sinks), ..attention }
}

/// The same attention with slopes, some so steep that only near positions count.
pub(super) fn with_slopes(attention: Attention) -> Attention {
    let slopes = (0..attention.n_heads).map(|head| [0.5, 0.01, 0.1][head % 3]).collect();
    Attention { slopes: Some(slopes), ..attention }
}

/// The same attention to selected positions of each row.
pub(super) fn with_selection(attention: Attention, selection: Selection) -> Attention {
    Attention { selection: Some(selection), ..attention }
}

/// The lists of selected positions of a row, each ascending: random ones.
fn selected_of(selection: Selection, position: usize) -> Vec<Vec<usize>> {
    (0..selection.lists).map(|list| list_of(selection, position, list)).collect()
}

/// One of the lists of a row.
fn list_of(selection: Selection, position: usize, list: usize) -> Vec<usize> {
    let seen = (position + 1) / selection.entry_pool().max(1);
    let order = random::activations(seen, (position + (list << 32)) as u64);
    let mut selected: Vec<usize> = (0..seen).collect();
    selected.sort_by(|a, b| order[*a].total_cmp(&order[*b]));
    selected.truncate(selection.count(position + 1));
    selected.sort_unstable();
    selected
}

fn case(sequences: &Sequences, kv_type: KvType, tolerance: f64, steps: &[Ranges]) -> Case {
    let Attention { n_heads, kv, window, softcap, sees_later, each_other, ref sinks, ref slopes, selection, .. } =
        sequences.attention;
    let KvShape { n_kv_heads, key_dim, value_dim, values_in_keys, pool, is_windowed } = kv;
    let form = if values_in_keys { ", latent" } else { "" };
    let windowed = if is_windowed { ", own blocks" } else { "" };
    let pools = if pool > 0 { format!(", pools of {pool}") } else { String::new() };
    let sinks = if sinks.is_some() { ", sinks" } else { "" };
    let slopes = if slopes.is_some() { ", slopes" } else { "" };
    let later = match (sees_later, each_other) {
        (true, _) => ", both ways",
        (false, EachOther::All) => "",
        (false, EachOther::FromWindow) => ", each other from the window on",
        (false, EachOther::Before) => ", never each other",
    };
    let selected = selection.map_or(String::new(), |Selection { pool, lists, unit, .. }| {
        format!(", selected by {pool} in {lists} lists of {unit:?}")
    });
    let name = format!(
        "{kv_type}, {n_heads}/{n_kv_heads} heads of {key_dim}/{value_dim}{form}{pools}, window {window:?}{windowed}, cap {softcap:?}{sinks}{slopes}{later}{selected}"
    );
    let steps = steps.iter().map(|ranges| sequences.case_step(ranges, tolerance)).collect();
    let cache = Some(CaseCache::of_kv(sequences.shapes(), kv_type, sequences.n_blocks()));
    Case { name, op: Box::new(sequences.attention.clone()), cache, steps }
}

/// Prompts, then canvases and rows that see each other after them, next to each other and to rows that are neither.
fn sight_case(sequences: &Sequences, kv_type: KvType) -> Case {
    let steps = [
        (vec![(0, 0..257), (1, 0..30)], vec![]),
        (vec![(1, 30..62)], vec![Before, Canvas, Before]),
        (vec![(0, 257..513), (2, 0..20), (1, 30..62)], vec![Canvas, Canvas, Before]),
        (vec![(2, 20..21), (0, 257..260)], vec![Canvas, Before, Before]),
        (vec![(1, 30..190), (0, 257..513), (2, 20..21)], vec![Sight::EachOther, Sight::EachOther, Before]),
        (vec![(2, 0..40), (1, 190..191)], vec![Canvas, Sight::EachOther, Sight::EachOther]),
    ];
    let of_step = |(ranges, sights): &(Ranges, Vec<Sight>)| {
        let mut step = sequences.case_step(ranges, 2e-5);
        step.batch.sights.clone_from(sights);
        for (rows, (sequence, range)) in starts_of(ranges).zip(ranges) {
            let sight = sights.get(*sequence).copied().unwrap_or_default();
            sequences.expect_sight(&mut step.expected[0], rows, sight, (*sequence, range.clone()));
        }
        step
    };
    let case = case(sequences, kv_type, 2e-5, &[]);
    Case { name: format!("{}, sights", case.name), steps: steps.iter().map(of_step).collect(), ..case }
}

/// The number of the first row of each range.
fn starts_of(ranges: &[(usize, Range<usize>)]) -> impl Iterator<Item = usize> {
    ranges.iter().scan(0, |next, (_, range)| {
        *next += range.len();
        Some(*next - range.len())
    })
}

/// Multiples of 1/128; the largest of every 32 values of a head is 127/128.
fn exact_values(head_dim: usize, len: usize, seed: u64) -> Vec<f32> {
    const STEP: f32 = 1.0 / 128.0;
    let mut values: Vec<f32> = random::activations(len, seed).iter().map(|x| (x * 127.0).round() * STEP).collect();
    for group in values.chunks_mut(head_dim).flat_map(|head| head.chunks_mut(SCALE_GROUP)) {
        group[group.len() / 2] = 127.0 * STEP;
    }
    values
}

/// Sequences of random queries, keys and values, in scattered blocks.
pub(super) struct Sequences {
    pub attention: Attention,
    pub block_tables: Vec<Vec<u32>>,
    query: Vec<Vec<f32>>,
    key: Vec<Vec<f32>>,
    value: Vec<Vec<f32>>,
}

impl Sequences {
    /// Sequences of these lengths; `values(dim, count, seed)` returns keys or values.
    pub fn new(attention: Attention, lengths: &[usize], values: impl Fn(usize, usize, u64) -> Vec<f32>) -> Self {
        let blocks = lengths.iter().max().map_or(0, |longest| longest / BLOCK_TOKENS + 1);
        let count = lengths.len();
        // Neighbouring blocks belong to different sequences, and later blocks have lower numbers.
        let block = |sequence: usize, block: usize| (blocks * count - 1 - block * count - sequence) as u32;
        let table = |sequence: usize| (0..blocks).map(|index| block(sequence, index)).collect();
        let kv = attention.kv;
        let of_each = |salt: u64, make: &dyn Fn(usize, u64) -> Vec<f32>| -> Vec<Vec<f32>> {
            (0..).zip(lengths).map(|(sequence, length)| make(*length, salt + 8 * sequence)).collect()
        };
        Sequences {
            block_tables: (0..count).map(table).collect(),
            query: of_each(1, &|len, seed| random::activations(len * attention.n_heads * kv.key_dim, seed)),
            key: of_each(2, &|len, seed| values(kv.key_dim, len * kv.key_width(), seed)),
            value: of_each(3, &|len, seed| values(kv.value_dim, len * kv.stored_value_width(), seed)),
            attention,
        }
    }

    /// The same sequences with queries and keys rotated.
    fn rotated(&self, rope: &Rope) -> Self {
        let each_row = |values: &[f32], width: usize| -> Vec<f32> {
            let rows = (0..).zip(values.chunks_exact(width));
            rows.flat_map(|(position, row)| rope::reference(rope, rope::axes_of(position), row))
                .map(|value| value as f32)
                .collect()
        };
        let all = |values: &[Vec<f32>], width: usize| values.iter().map(|values| each_row(values, width)).collect();
        let Attention { n_heads, kv, .. } = self.attention;
        Sequences {
            attention: self.attention.clone(),
            block_tables: self.block_tables.clone(),
            query: all(&self.query, n_heads * kv.key_dim),
            key: all(&self.key, kv.key_width()),
            value: self.value.clone(),
        }
    }

    /// The shapes of a cache that has the layer of the attention.
    pub fn shapes(&self) -> Vec<KvShape> {
        vec![self.attention.kv; self.attention.layer + 1]
    }

    /// The number of blocks of all sequences.
    pub fn n_blocks(&self) -> usize {
        self.block_tables.iter().map(Vec::len).sum()
    }

    /// The rows of a step.
    pub fn batch(&self, ranges: &[(usize, Range<usize>)]) -> CaseBatch {
        let rows = || ranges.iter().flat_map(|(sequence, range)| range.clone().map(|position| (*sequence, position)));
        let sequences: Vec<u32> = rows().map(|(sequence, _)| sequence as u32).collect();
        CaseBatch {
            tokens: sequences.clone(),
            positions: rows().map(|(_, position)| position as u32).collect(),
            selected: (0..sequences.len() as u32).collect(),
            sequences,
            block_tables: self.block_tables.clone(),
            window_tables: self.window_tables(ranges),
            ..CaseBatch::default()
        }
    }

    /// Other blocks for a layer that keeps windows, and one of another sequence before the window of each first row.
    fn window_tables(&self, ranges: &[(usize, Range<usize>)]) -> Vec<Vec<u32>> {
        let Some(window) = self.attention.window.filter(|_| self.attention.kv.is_windowed) else { return Vec::new() };
        let last = self.n_blocks() as u32 - 1;
        let mut tables = self.block_tables.clone();
        tables.iter_mut().flatten().for_each(|block| *block = last - *block);
        for (sequence, range) in ranges {
            let before = window.first_visible(range.start) / BLOCK_TOKENS;
            let other = tables[(sequence + 1) % tables.len()][0];
            tables[*sequence][..before].fill(other);
        }
        tables
    }

    /// Query, key and, where these are inputs, value and selected positions of the rows of a step.
    pub fn inputs(&self, ranges: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
        let Attention { n_heads, kv, .. } = self.attention;
        let gather = |source: &[Vec<f32>], width: usize| {
            ranges.iter().flat_map(|(s, range)| &source[*s][range.start * width..range.end * width]).copied().collect()
        };
        let mut inputs = vec![gather(&self.query, n_heads * kv.key_dim), gather(&self.key, kv.key_width())];
        if kv.stored_value_dim() > 0 {
            inputs.push(gather(&self.value, kv.value_width()));
        }
        if let Some(selection) = self.attention.selection {
            let of_row = |position: usize| {
                let padded = |list: Vec<usize>| {
                    let selected = list.into_iter().map(|position| position as f32);
                    selected.chain(std::iter::repeat(0.0)).take(selection.most)
                };
                selected_of(selection, position).into_iter().flat_map(padded).collect::<Vec<_>>()
            };
            inputs.push(ranges.iter().flat_map(|(_, range)| range.clone().flat_map(of_row)).collect());
        }
        inputs
    }

    /// The expected output for a position of a sequence.
    pub fn reference(&self, sequence: usize, position: usize) -> Vec<f64> {
        let (query, key, value) = (&self.query[sequence], &self.key[sequence], &self.value[sequence]);
        let selected = self.attention.selection.map(|selection| selected_of(selection, position));
        reference::attend(&self.attention, (position, selected.as_deref()), query, key, value)
    }

    /// The expected output for a position of a sequence that sees these positions.
    pub fn reference_of(&self, sequence: usize, position: usize, visible: Range<usize>) -> Vec<f64> {
        let values = [&self.query[sequence], &self.key[sequence], &self.value[sequence]];
        let visible: Vec<Cell> = visible.map(|position| Cell { position, is_entry: false }).collect();
        reference::attend_to(&self.attention, position, &[visible], values.map(Vec::as_slice))
    }

    /// Replaces the expected outputs of the rows from `first` on, which see this of each other. Those of some rows are computed.
    fn expect_sight(
        &self,
        expected: &mut [Expected],
        first: usize,
        sight: Sight,
        (sequence, range): (usize, Range<usize>),
    ) {
        if sight == Before {
            return;
        }
        const EVERY: usize = 41;
        let width = self.attention.n_heads * self.attention.kv.value_dim;
        let of_sequence = RowsInStep { sight, start: range.start, end: range.end };
        for (row, position) in range.clone().enumerate() {
            let computed = row == 0 || position + 1 == range.end || row.is_multiple_of(EVERY);
            let of_row = match computed {
                true => Expected::within(
                    2e-5,
                    self.reference_of(sequence, position, self.attention.visible(position, of_sequence)),
                ),
                false => vec![Expected::ANY; width],
            };
            expected[(first + row) * width..][..width].copy_from_slice(&of_row);
        }
    }

    /// A step with its expected outputs. The reference is slow, so it is computed only for the first and the last row
    /// of each range, and for some rows between.
    fn case_step(&self, ranges: &[(usize, Range<usize>)], tolerance: f64) -> CaseStep {
        const EVERY: usize = 41;
        let width = self.attention.n_heads * self.attention.kv.value_dim;
        let of_row = |sequence: usize, range: &Range<usize>, position: usize| {
            let computed = position == range.start || position + 1 == range.end || position.is_multiple_of(EVERY);
            if computed {
                Expected::within(tolerance, self.reference(sequence, position))
            } else {
                vec![Expected::ANY; width]
            }
        };
        let rows = ranges.iter().flat_map(|(sequence, range)| range.clone().map(move |p| of_row(*sequence, range, p)));
        let expected = vec![rows.flatten().collect()];
        let batch = self.batch(ranges);
        CaseStep { rows: RowCount::All(batch.tokens.len()), batch, inputs: self.inputs(ranges), expected }
    }
}
