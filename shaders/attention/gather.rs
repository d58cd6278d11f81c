//! What some queries gather from some positions of one sequence: the kernel of attention.
//!
//! A *span* is [`SPAN_BLOCKS`] blocks. Tiles of up to four queries take a span after the other: the scores of its positions, one
//! step of the online softmax, the weighted sum of its values. With few queries keys and values are widened where they are
//! used, with many once for all. Either way a score is one chain of additions over the dimensions, and a value one over
//! the positions, so that a query's bits do not depend on the others.

use std::ops::Range;

use super::Attention;
use super::cache::{BLOCK_TOKENS, Layer, PlainHead, SCALE_GROUP, Storage, Store, StoredHead};
use crate::elementwise::softcap;
use crate::per_vector;
use crate::vector::{LANES, Vector, exp};

/// Blocks of a span.
const SPAN_BLOCKS: usize = 4;
/// Positions of a span.
const SPAN_TOKENS: usize = SPAN_BLOCKS * BLOCK_TOKENS;

/// Queries of a call at most. A query is a row and a head.
pub(super) const TASK_QUERIES: usize = 64;
/// With more queries than this, keys and values are widened once for all.
const QUERIES_THAT_WIDEN: usize = 8;

/// What a query gathers is a *part*: this header, and the weighted sum of the values in whole vectors. The header starts with
/// the sums of the weights, each slot of the blocks by itself.
pub(super) const HEADER: usize = 2 * LANES;
/// Where in the header the greatest score stands.
pub(super) const GREATEST: usize = LANES;
/// Where in the header the sum of all weights stands, once all is gathered.
pub(super) const WEIGHT: usize = LANES + 1;

/// Some rows at successive positions of one sequence, and some query heads of one KV head.
pub(super) struct Queries<'a> {
    pub attention: &'a Attention,
    pub layer: &'a Layer,
    pub block_table: &'a [u32],
    /// [rows, n_heads * head_dim]
    pub query: &'a [f32],
    pub kv_head: usize,
    pub first_row: usize,
    pub first_position: usize,
    pub rows: usize,
    pub heads: Range<usize>,
}

impl Queries<'_> {
    /// Queries are counted row after row.
    pub fn len(&self) -> usize {
        self.rows * self.heads.len()
    }

    /// Values of the room that [`gather`] needs.
    pub fn widened_len(&self) -> usize {
        if self.len() > QUERIES_THAT_WIDEN { WIDENED * self.attention.head_dim.next_multiple_of(LANES) } else { 0 }
    }

    pub fn row_and_head(&self, index: usize) -> (usize, usize) {
        (self.first_row + index / self.heads.len(), self.heads.start + index % self.heads.len())
    }

    /// Where a query has its values, and its result.
    #[inline(always)]
    pub fn offset(&self, index: usize) -> usize {
        let (row, head) = self.row_and_head(index);
        (row * self.attention.n_heads + head) * self.attention.head_dim
    }

    /// The positions that any query sees.
    pub fn visible(&self) -> Range<usize> {
        self.attention.first_visible(self.first_position)..self.first_position + self.rows
    }

    /// The positions that one query sees, counted from `start` on, as far as they lie in the next `len`.
    #[inline(always)]
    fn visible_in(&self, index: usize, start: usize, len: usize) -> Range<usize> {
        let position = self.first_position + index / self.heads.len();
        let first = self.attention.first_visible(position).saturating_sub(start).min(len);
        first..(position + 1).saturating_sub(start).clamp(first, len)
    }
}

per_vector! {
    /// What each query gathers from `positions`, a whole number of spans; `parts` is `[queries, HEADER + stride]`, and 0
    /// before; `room` is `[WIDENED, stride]`. Nobody may write the positions at the time.
    pub(super) fn gather = gather_vectors(
        queries: &Queries<'_>,
        positions: Range<usize>,
        parts: &mut [f32],
        room: &mut [f32],
    )
}

/// # Safety
/// As [`Vector`]; nobody may write the positions now.
#[inline(always)]
unsafe fn gather_vectors<V: Vector>(
    queries: &Queries<'_>,
    positions: Range<usize>,
    parts: &mut [f32],
    room: &mut [f32],
) {
    // SAFETY: as the caller's.
    unsafe {
        match &queries.layer.store {
            Store::F16(planes) => gather_stored::<V, _, true>(queries, planes, positions, parts, room),
            Store::F32(planes) => gather_stored::<V, _, false>(queries, planes, positions, parts, room),
            Store::Q8(planes) => gather_stored::<V, _, true>(queries, planes, positions, parts, room),
        }
    }
}

/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn gather_stored<V: Vector, S: Storage, const WIDEN: bool>(
    queries: &Queries<'_>,
    storage: &S,
    positions: Range<usize>,
    parts: &mut [f32],
    room: &mut [f32],
) {
    let visible = queries.visible();
    let (first, end) = (visible.start.max(positions.start), visible.end.min(positions.end));
    let len = parts.len() / queries.len();
    parts.iter_mut().skip(GREATEST).step_by(len).for_each(|greatest| *greatest = f32::NEG_INFINITY);
    let head = |block: usize| storage.head(queries.layer.head_index(queries.block_table[block], queries.kv_head));
    for start in (first / SPAN_TOKENS * SPAN_TOKENS..end).step_by(SPAN_TOKENS) {
        let first_block = start / BLOCK_TOKENS;
        let blocks = (end - start).div_ceil(BLOCK_TOKENS).min(SPAN_BLOCKS);
        // Blocks before a window may have been given up, but a block table still names some block there.
        let heads: [S::Head; SPAN_BLOCKS] = std::array::from_fn(|block| head(first_block + block.min(blocks - 1)));
        for next in first_block + SPAN_BLOCKS..end.div_ceil(BLOCK_TOKENS).min(first_block + 2 * SPAN_BLOCKS) {
            head(next).prefetch();
        }
        // SAFETY: as the caller's; the blocks hold the positions, and those not stored yet are nobody's to see.
        unsafe {
            if WIDEN && queries.len() > QUERIES_THAT_WIDEN {
                let heads = widen::<V, S::Head>(&heads[..blocks], queries.attention.head_dim, room);
                tiles::<V, _, false>(queries, &heads[..blocks], start, parts);
            } else {
                tiles::<V, _, true>(queries, &heads[..blocks], start, parts);
            }
        }
    }
    for part in parts.chunks_exact_mut(len) {
        part[WEIGHT] = part[..LANES].iter().sum();
    }
}

/// Values that the keys and values of a span take in single precision, for each dimension of a head.
pub(super) const WIDENED: usize = 2 * SPAN_TOKENS;

/// Widens some blocks into `room`, [`WIDENED`] values for each of the `stride` dimensions that are stored.
///
/// # Safety
/// As [`StoredHead`]. What is returned is good as long as the room.
#[inline(always)]
unsafe fn widen<V: Vector, H: StoredHead>(
    heads: &[H],
    head_dim: usize,
    room: &mut [f32],
) -> [PlainHead<f32>; SPAN_BLOCKS] {
    let stride = head_dim.next_multiple_of(LANES);
    assert!(room.len() >= WIDENED * stride && heads.len() <= SPAN_BLOCKS);
    let room = room.as_mut_ptr();
    let block = |index: usize| room.wrapping_add(index * BLOCK_TOKENS * stride);
    for (index, head) in heads.iter().enumerate() {
        let (keys, values) = (block(2 * index), block(2 * index + 1));
        // SAFETY: the room has 16 positions of the head for each block's keys and values, by the assertion; the rest as
        // the caller's.
        unsafe {
            for group in 0..head_dim.div_ceil(SCALE_GROUP) {
                let scales = head.key_scales::<V>(group);
                for dim in group * SCALE_GROUP..head_dim.min((group + 1) * SCALE_GROUP) {
                    head.keys(dim, scales).store(keys.add(dim * BLOCK_TOKENS));
                }
            }
            for slot in 0..BLOCK_TOKENS {
                for dim in (0..stride).step_by(LANES) {
                    head.value::<V>(slot, dim).store(values.add(slot * stride + dim));
                }
            }
        }
    }
    std::array::from_fn(|index| PlainHead::of(block(2 * index), block(2 * index + 1), stride))
}

/// Lets all queries see a span, which starts at position `start`; `FEW`: tiles of every size, for there are few.
///
/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn tiles<V: Vector, H: StoredHead, const FEW: bool>(
    queries: &Queries<'_>,
    span: &[H],
    start: usize,
    parts: &mut [f32],
) {
    // Rows before the span do not see it, nor those whose window lies behind it.
    let len = span.len() * BLOCK_TOKENS;
    let sees = |index: &usize| !queries.visible_in(*index, start, len).is_empty();
    let first = (0..queries.len()).find(sees).unwrap_or(queries.len());
    let end = (first..queries.len()).find(|index| !sees(index)).unwrap_or(queries.len());
    let mut index = first;
    while index < end {
        // SAFETY: as the caller's.
        index += unsafe {
            match end - index {
                4.. => tile::<V, H, 4>(queries, index, span, start, parts),
                3 if FEW => tile::<V, H, 3>(queries, index, span, start, parts),
                2 if FEW => tile::<V, H, 2>(queries, index, span, start, parts),
                _ => tile::<V, H, 1>(queries, index, span, start, parts),
            }
        };
    }
}

/// Lets the queries `first..first + N` see a span; returns `N`.
///
/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn tile<V: Vector, H: StoredHead, const N: usize>(
    queries: &Queries<'_>,
    first: usize,
    span: &[H],
    start: usize,
    parts: &mut [f32],
) -> usize {
    let (attention, tokens) = (queries.attention, span.len() * BLOCK_TOKENS);
    let mut seen = tokens..0;
    let part_len = parts.len() / queries.len();
    let mut inputs = [std::ptr::null(); N];
    let mut outputs = [std::ptr::null_mut(); N];
    let mut visible: [Range<usize>; N] = [const { 0..0 }; N];
    for n in 0..N {
        inputs[n] = queries.query[queries.offset(first + n)..][..attention.head_dim].as_ptr();
        outputs[n] = parts[(first + n) * part_len..][..part_len][HEADER..].as_mut_ptr();
        visible[n] = queries.visible_in(first + n, start, tokens);
        seen = seen.start.min(visible[n].start)..seen.end.max(visible[n].end);
    }
    let mut scores = [[0.0; SPAN_TOKENS]; N];
    // SAFETY: inputs are `head_dim` values and outputs a whole number of vectors, by the lines above, and different from
    // one another; the rest as the caller's.
    unsafe {
        let abreast = const { abreast(V::SUMS, N) };
        let mut block = 0;
        while block < span.len() {
            let at = block * BLOCK_TOKENS;
            block += match (abreast, &span[block..]) {
                (4, &[a, b, c, d]) => {
                    form_scores::<V, H, N, 4>(&inputs, [a, b, c, d], attention.head_dim, at, &mut scores)
                }
                (2.., &[a, b, ..]) => form_scores::<V, H, N, 2>(&inputs, [a, b], attention.head_dim, at, &mut scores),
                _ => form_scores::<V, H, N, 1>(&inputs, [span[block]], attention.head_dim, at, &mut scores),
            };
        }
        for n in 0..N {
            let scores = &mut scores[n][..tokens];
            if let Some(cap) = attention.softcap {
                scores.iter_mut().for_each(|score| *score = softcap(*score * attention.scale, cap));
            }
            // Slots outside get a weight of 0, whatever is in the cache there.
            scores[..visible[n].start].fill(f32::NEG_INFINITY);
            scores[visible[n].end..].fill(f32::NEG_INFINITY);
            let scale = if attention.softcap.is_some() { 1.0 } else { attention.scale };
            let header = outputs[n].sub(HEADER).cast::<[f32; HEADER]>();
            let rescale = take_span::<V>(&mut *header, scores, scale);
            if rescale != 1.0 {
                for dim in (0..part_len - HEADER).step_by(LANES) {
                    let output = outputs[n].add(dim);
                    V::load(output).multiply(V::splat(rescale)).store(output);
                }
            }
        }
        // All of these positions have been stored, since one of the queries sees them; the others give them no weight.
        add_values::<V, H, N>(&scores, span, seen, &outputs, part_len - HEADER);
    }
    N
}

/// How many vectors of each of `n` queries the registers hold as running sums.
const fn abreast(sums: usize, n: usize) -> usize {
    match sums / n {
        0 => 1,
        SPAN_BLOCKS.. => SPAN_BLOCKS,
        some => some,
    }
}

/// The dot products of `N` queries with the keys of `B` blocks, into the scores from `at` on; returns `B`.
///
/// # Safety
/// As [`StoredHead`]; each input has `head_dim` values.
#[inline(always)]
unsafe fn form_scores<V: Vector, H: StoredHead, const N: usize, const B: usize>(
    inputs: &[*const f32; N],
    blocks: [H; B],
    head_dim: usize,
    at: usize,
    scores: &mut [[f32; SPAN_TOKENS]; N],
) -> usize {
    assert!(at + B * BLOCK_TOKENS <= SPAN_TOKENS);
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [[V::splat(0.0); B]; N];
        let mut scales = [V::splat(1.0); B];
        for group in (0..head_dim).step_by(SCALE_GROUP) {
            for b in 0..B {
                scales[b] = blocks[b].key_scales(group / SCALE_GROUP);
            }
            for dim in group..head_dim.min(group + SCALE_GROUP) {
                let mut keys = [V::splat(0.0); B];
                for b in 0..B {
                    keys[b] = blocks[b].keys(dim, scales[b]);
                }
                for n in 0..N {
                    let x = V::splat(*inputs[n].add(dim));
                    for b in 0..B {
                        sums[n][b] = x.multiply_add(keys[b], sums[n][b]);
                    }
                }
            }
        }
        for n in 0..N {
            for b in 0..B {
                sums[n][b].store(scores[n].as_mut_ptr().add(at + b * BLOCK_TOKENS));
            }
        }
    }
    B
}

/// Adds the values of the positions in `range`, times their weights, in their order.
///
/// # Safety
/// As [`StoredHead`]; each output has `stride` values, and none aliases another.
#[inline(always)]
unsafe fn add_values<V: Vector, H: StoredHead, const N: usize>(
    weights: &[[f32; SPAN_TOKENS]; N],
    span: &[H],
    range: Range<usize>,
    outputs: &[*mut f32; N],
    stride: usize,
) {
    let abreast = const { abreast(V::SUMS, N) };
    let mut dim = 0;
    while dim < stride {
        // SAFETY: as the caller's.
        dim += LANES
            * unsafe {
                match (abreast, (stride - dim) / LANES) {
                    (4, 4..) => add_lanes::<V, H, N, 4>(weights, span, range.clone(), outputs, dim),
                    (2.., 2..) => add_lanes::<V, H, N, 2>(weights, span, range.clone(), outputs, dim),
                    _ => add_lanes::<V, H, N, 1>(weights, span, range.clone(), outputs, dim),
                }
            };
    }
}

/// Adds `J` vectors of the values, from `dim` on; returns `J`.
///
/// # Safety
/// As [`add_values`].
#[inline(always)]
unsafe fn add_lanes<V: Vector, H: StoredHead, const N: usize, const J: usize>(
    weights: &[[f32; SPAN_TOKENS]; N],
    span: &[H],
    range: Range<usize>,
    outputs: &[*mut f32; N],
    dim: usize,
) -> usize {
    assert!(range.end <= span.len() * BLOCK_TOKENS);
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [[V::splat(0.0); J]; N];
        for n in 0..N {
            for j in 0..J {
                sums[n][j] = V::load(outputs[n].add(dim + j * LANES));
            }
        }
        let mut slot = range.start;
        while slot < range.end {
            let head = span[slot / BLOCK_TOKENS];
            let end = range.end.min((slot / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
            while slot < end {
                let mut values = [V::splat(0.0); J];
                for j in 0..J {
                    values[j] = head.value(slot % BLOCK_TOKENS, dim + j * LANES);
                }
                for n in 0..N {
                    let weight = V::splat(weights[n][slot]);
                    for j in 0..J {
                        sums[n][j] = weight.multiply_add(values[j], sums[n][j]);
                    }
                }
                slot += 1;
            }
        }
        for n in 0..N {
            for j in 0..J {
                sums[n][j].store(outputs[n].add(dim + j * LANES));
            }
        }
    }
    J
}

/// Turns the scores of some blocks, times `scale`, into weights relative to the new maximum, and returns by what earlier
/// sums must be multiplied; the header has the maximum and the sums of the weights.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn take_span<V: Vector>(header: &mut [f32; HEADER], scores: &mut [f32], scale: f32) -> f32 {
    let before = header[GREATEST];
    let scores = scores.as_chunks_mut::<BLOCK_TOKENS>().0;
    // SAFETY: each chunk is a vector, and so are the sums; the rest as the caller's.
    unsafe {
        let scale = V::splat(scale);
        let mut greatest = V::splat(before);
        for scores in scores.iter_mut() {
            let scaled = V::load(scores.as_ptr()).multiply(scale);
            scaled.store(scores.as_mut_ptr());
            greatest = greatest.maximum(scaled);
        }
        let greatest = greatest.greatest();
        let rescale = if before == greatest { 1.0 } else { crate::lanes::exp(before - greatest) };
        let mut sums = V::load(header.as_ptr()).multiply(V::splat(rescale));
        for scores in scores {
            let below = V::load(scores.as_ptr()).subtract(V::splat(greatest));
            // What `exp` cannot tell from 0 is 0, and so is what a query does not see.
            let weights = exp(below).where_above(below, -87.0);
            sums = sums.add(weights);
            weights.store(scores.as_mut_ptr());
        }
        sums.store(header.as_mut_ptr());
        header[GREATEST] = greatest;
        rescale
    }
}
