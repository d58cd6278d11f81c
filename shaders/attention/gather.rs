//! The CPU kernel of attention: some queries over some positions of one sequence.
//!
//! A *span* is [`SPAN_BLOCKS`] blocks. Tiles of up to four queries process one span after the other: the scores of its
//! positions, one step of the online softmax, and the weighted sum of its values.
//!
//! With few queries, keys and values are upconverted to float32 where they are used; with many, once for all queries.
//! Values that are part of their keys are always upconverted first, because keys are stored transposed. In both ways a
//! score is one chain of additions over the dimensions, and a value is one chain over the positions. So the bits of a
//! query do not depend on the other queries.

use std::ops::Range;

use super::{Attention, Cell, RowsInStep};
use crate::cpu::Kernel;
use crate::kv::{BLOCK_TOKENS, KvShape, Layer, PlainHead, SCALE_GROUP, Storage, Store, StoredHead};
use crate::per_vector;
use crate::softcap::softcap;
use crate::vector::{LANES, Vector, exp};

/// Blocks of a span.
const SPAN_BLOCKS: usize = 4;
/// Positions of a span.
const SPAN_TOKENS: usize = SPAN_BLOCKS * BLOCK_TOKENS;

/// The maximum number of queries of a call. A query is a head of a row.
pub(super) const TASK_QUERIES: usize = 64;
/// With more queries than this, keys and values are upconverted once for all queries.
const UPCONVERT_ABOVE: usize = 8;

/// Values in the header of a *partial*, which is the partial result of a query: the header, then the weighted sum of
/// the values in whole vectors. The header starts with the sums of the weights, one for each slot of a block.
pub(super) const HEADER: usize = 2 * LANES;
/// The index of the greatest score in the header.
pub(super) const GREATEST: usize = LANES;
/// The index of the sum of all weights in the header. It is written last.
pub(super) const WEIGHT: usize = LANES + 1;

/// Some rows at consecutive positions of one sequence, and some query heads of one KV head.
pub(super) struct Queries<'a> {
    pub kernel: Kernel,
    pub attention: &'a Attention,
    pub layer: &'a Layer,
    pub block_table: &'a [u32],
    /// [rows, n_heads * key_dim]
    pub query: &'a [f32],
    /// Whether the only row sees cells that are not adjacent. Everything else then counts indices of them.
    pub lists_cells: bool,
    /// The selected positions or pools of the only row, if it does not see all.
    pub selected: Option<&'a [f32]>,
    pub kv_head: usize,
    pub first_row: usize,
    pub first_position: usize,
    /// All rows of the sequence in the step.
    pub of_sequence: RowsInStep,
    pub rows: usize,
    pub heads: Range<usize>,
}

impl Queries<'_> {
    /// The number of queries, which are numbered row after row.
    pub fn len(&self) -> usize {
        self.rows * self.heads.len()
    }

    /// The number of upconverted values for which [`gather`] needs memory.
    pub fn upconverted_len(&self) -> usize {
        let kv = &self.attention.kv;
        let dims = kv.key_dim.next_multiple_of(LANES) + kv.value_dim.next_multiple_of(LANES);
        let is_needed = kv.values_in_keys || self.lists_cells || self.len() > UPCONVERT_ABOVE;
        if is_needed { SPAN_TOKENS * dims } else { 0 }
    }

    pub fn row_and_head(&self, index: usize) -> (usize, usize) {
        (self.first_row + index / self.heads.len(), self.heads.start + index % self.heads.len())
    }

    #[inline(always)]
    fn position(&self, index: usize) -> usize {
        self.first_position + index / self.heads.len()
    }

    /// The offset of a query in `query`.
    #[inline(always)]
    pub fn offset(&self, index: usize) -> usize {
        let (row, head) = self.row_and_head(index);
        (row * self.attention.n_heads + head) * self.attention.kv.key_dim
    }

    /// The positions that any query sees.
    pub fn visible(&self) -> Range<usize> {
        let last = self.first_position + self.rows - 1;
        let visible = |position| self.attention.visible(position, self.of_sequence);
        visible(self.first_position).start..visible(last).end
    }

    /// The positions that one query sees among the `len` positions from `start` on, relative to `start`.
    #[inline(always)]
    fn visible_in(&self, index: usize, start: usize, len: usize) -> Range<usize> {
        let visible = self.attention.visible(self.position(index), self.of_sequence);
        let first = visible.start.saturating_sub(start).min(len);
        first..visible.end.saturating_sub(start).clamp(first, len)
    }
}

per_vector! {
    /// Computes the partial of each query over `positions`, a whole number of spans. `partials` is `[queries, HEADER +
    /// stride]` and initially 0; `upconverted` has [`Queries::upconverted_len`] values.
    ///
    /// # Safety
    /// No thread may write the positions at the same time.
    pub(super) unsafe fn gather = gather_vectors(
        queries: &Queries<'_>,
        positions: Range<usize>,
        partials: &mut [f32],
        upconverted: &mut [f32],
    )
}

/// # Safety
/// As [`Vector`]; no thread may write the positions at the same time.
#[inline(always)]
unsafe fn gather_vectors<V: Vector>(
    queries: &Queries<'_>,
    positions: Range<usize>,
    partials: &mut [f32],
    upconverted: &mut [f32],
) {
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        match &queries.layer.store {
            Store::F16(planes) => gather_stored::<V, _, true>(queries, planes, positions, partials, upconverted),
            Store::F32(planes) => gather_stored::<V, _, false>(queries, planes, positions, partials, upconverted),
            Store::Q8(planes) => gather_stored::<V, _, true>(queries, planes, positions, partials, upconverted),
        }
    }
}

/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn gather_stored<V: Vector, S: Storage, const UPCONVERT: bool>(
    queries: &Queries<'_>,
    storage: &S,
    positions: Range<usize>,
    partials: &mut [f32],
    upconverted: &mut [f32],
) {
    let visible = queries.visible();
    let (first, end) = (visible.start.max(positions.start), visible.end.min(positions.end));
    let len = partials.len() / queries.len();
    partials.iter_mut().skip(GREATEST).step_by(len).for_each(|greatest| *greatest = f32::NEG_INFINITY);
    let head = |block: usize| storage.head(queries.layer.head_index(queries.block_table[block], queries.kv_head));
    if queries.lists_cells {
        let cell = |index| queries.attention.cell(queries.first_position, queries.selected, index);
        for start in (first / SPAN_TOKENS * SPAN_TOKENS..end).step_by(SPAN_TOKENS) {
            let len = SPAN_TOKENS.min(end - start);
            let mut cells = [cell(start); SPAN_TOKENS];
            cells[..len].iter_mut().zip(start..).for_each(|(of_span, index)| *of_span = cell(index));
            // SAFETY: the caller fulfils the same conditions.
            unsafe {
                let heads = collect::<V, S::Head>(&head, &cells[..len], &queries.attention.kv, upconverted);
                plain_tiles(queries.kernel, queries, &heads[..len.div_ceil(BLOCK_TOKENS)], start, partials);
            }
        }
        add_up_weights(partials, len);
        return;
    }
    for start in (first / SPAN_TOKENS * SPAN_TOKENS..end).step_by(SPAN_TOKENS) {
        let first_block = start / BLOCK_TOKENS;
        let blocks = (end - start).div_ceil(BLOCK_TOKENS).min(SPAN_BLOCKS);
        // Blocks before a window may have been freed, but the block table still has a valid entry for them.
        let heads: [S::Head; SPAN_BLOCKS] = std::array::from_fn(|block| head(first_block + block.min(blocks - 1)));
        for next in first_block + SPAN_BLOCKS..end.div_ceil(BLOCK_TOKENS).min(first_block + 2 * SPAN_BLOCKS) {
            head(next).prefetch();
        }
        // SAFETY: the caller fulfils the same conditions. The blocks hold the positions; positions that are not stored
        // yet are not visible to any query.
        unsafe {
            let in_keys = queries.attention.kv.values_in_keys;
            if in_keys || (UPCONVERT && queries.len() > UPCONVERT_ABOVE) {
                let heads = upconvert::<V, S::Head>(&heads[..blocks], &queries.attention.kv, upconverted);
                plain_tiles(queries.kernel, queries, &heads[..blocks], start, partials);
            } else {
                tiles::<V>(queries, &heads[..blocks], start, partials);
            }
        }
    }
    add_up_weights(partials, len);
}

/// Completes the headers of partials of `len` values.
fn add_up_weights(partials: &mut [f32], len: usize) {
    for partial in partials.chunks_exact_mut(len) {
        partial[WEIGHT] = partial[..LANES].iter().sum();
    }
}

/// Values in single precision of the keys and values of a span, for each dimension of the longest head.
pub(super) const UPCONVERTED: usize = 2 * SPAN_TOKENS;

/// Upconverts some blocks into `upconverted`: [`SPAN_TOKENS`] values for each stored dimension of a key, then of a
/// value.
///
/// # Safety
/// As [`StoredHead`]. The returned heads are valid as long as `upconverted`.
#[inline(always)]
unsafe fn upconvert<V: Vector, H: StoredHead>(
    heads: &[H],
    shape: &KvShape,
    upconverted: &mut [f32],
) -> [PlainHead<f32>; SPAN_BLOCKS] {
    let (key_stride, value_stride) = (shape.key_dim.next_multiple_of(LANES), shape.value_dim.next_multiple_of(LANES));
    assert!(upconverted.len() >= SPAN_TOKENS * (key_stride + value_stride) && heads.len() <= SPAN_BLOCKS);
    let (keys, values) = upconverted.split_at_mut(SPAN_TOKENS * key_stride);
    let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
    let keys_of = |block: usize| keys.wrapping_add(block * BLOCK_TOKENS * key_stride);
    let values_of = |block: usize| values.wrapping_add(block * BLOCK_TOKENS * value_stride);
    for (index, head) in heads.iter().enumerate() {
        let (keys, values) = (keys_of(index), values_of(index));
        // SAFETY: `upconverted` has 16 positions of the head for the keys and values of each block, by the assertion;
        // the caller fulfils the other conditions.
        unsafe {
            for group in 0..shape.key_dim.div_ceil(SCALE_GROUP) {
                let scales = head.key_scales::<V>(group);
                for dim in group * SCALE_GROUP..shape.key_dim.min((group + 1) * SCALE_GROUP) {
                    head.keys(dim, scales).store(keys.add(dim * BLOCK_TOKENS));
                }
            }
            if shape.values_in_keys {
                transpose(keys, values, shape.value_dim, value_stride);
                continue;
            }
            for slot in 0..BLOCK_TOKENS {
                for dim in (0..value_stride).step_by(LANES) {
                    head.value::<V>(slot, dim).store(values.add(slot * value_stride + dim));
                }
            }
        }
    }
    std::array::from_fn(|index| PlainHead::of(keys_of(index), values_of(index), [key_stride, value_stride]))
}

/// Upconverts the cells of a span into `upconverted`, as if they were adjacent positions. `head` returns the blocks of the
/// sequence.
///
/// # Safety
/// As [`StoredHead`]; the blocks hold the positions. The returned heads are valid as long as `upconverted`.
#[inline(always)]
unsafe fn collect<V: Vector, H: StoredHead>(
    head: &impl Fn(usize) -> H,
    cells: &[Cell],
    shape: &KvShape,
    upconverted: &mut [f32],
) -> [PlainHead<f32>; SPAN_BLOCKS] {
    let (key_stride, value_stride) = (shape.key_dim.next_multiple_of(LANES), shape.value_dim.next_multiple_of(LANES));
    assert!(upconverted.len() >= SPAN_TOKENS * (key_stride + value_stride) && cells.len() <= SPAN_TOKENS);
    let (keys, values) = upconverted.split_at_mut(SPAN_TOKENS * key_stride);
    let mut index = 0;
    while index < cells.len() {
        let first = cells[index];
        let block = first.position / BLOCK_TOKENS;
        let is_alike = |cell: &&Cell| cell.is_entry == first.is_entry && cell.position / BLOCK_TOKENS == block;
        let alike = &cells[index..][..cells[index..].iter().take_while(is_alike).count()];
        let (keys, values) = ((&mut *keys, key_stride), (&mut *values, value_stride));
        // SAFETY: the caller fulfils the same conditions.
        unsafe {
            match first.is_entry {
                true => collect_entries::<V, H>(head(block), (index, alike), shape, keys, values),
                false => collect_block::<V, H>(head(block), (index, alike), shape, keys, values),
            }
        }
        index += alike.len();
    }
    let (keys, values) = (keys.as_ptr(), values.as_ptr());
    std::array::from_fn(|block| {
        let start = block * BLOCK_TOKENS;
        let (keys, values) = (keys.wrapping_add(start * key_stride), values.wrapping_add(start * value_stride));
        PlainHead::of(keys, values, [key_stride, value_stride])
    })
}

/// Upconverts some positions of one block, which become those from `first` on.
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn collect_block<V: Vector, H: StoredHead>(
    head: H,
    (first, cells): (usize, &[Cell]),
    shape: &KvShape,
    (keys, key_stride): (&mut [f32], usize),
    (values, value_stride): (&mut [f32], usize),
) {
    let mut of_dim = [0.0; LANES];
    for dim in 0..shape.key_dim {
        // SAFETY: the dimension is one of the head's; the caller fulfils the other conditions.
        unsafe { head.keys(dim, head.key_scales::<V>(dim / SCALE_GROUP)).store(of_dim.as_mut_ptr()) };
        for (index, cell) in (first..).zip(cells) {
            let key = of_dim[cell.position % BLOCK_TOKENS];
            keys[key_place(index, key_stride) + dim * BLOCK_TOKENS] = key;
            if shape.values_in_keys && dim < shape.value_dim {
                values[index * value_stride + dim] = key;
            }
        }
    }
    if shape.values_in_keys {
        return;
    }
    for (index, cell) in (first..).zip(cells) {
        let slot = cell.position % BLOCK_TOKENS;
        for dim in (0..value_stride).step_by(LANES) {
            let value = &mut values[index * value_stride + dim..][..LANES];
            // SAFETY: the slot and the dimensions are of the head, and `value` is a whole vector.
            unsafe { head.value::<V>(slot, dim).store(value.as_mut_ptr()) };
        }
    }
}

/// Upconverts some entries of one block, which are keys and values, as [`collect_block`].
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn collect_entries<V: Vector, H: StoredHead>(
    head: H,
    (first, cells): (usize, &[Cell]),
    shape: &KvShape,
    (keys, key_stride): (&mut [f32], usize),
    (values, value_stride): (&mut [f32], usize),
) {
    for (index, cell) in (first..).zip(cells) {
        let slot = shape.value_slot(cell.position % BLOCK_TOKENS);
        let value = &mut values[index * value_stride..][..value_stride];
        for (dim, value) in (0..).step_by(LANES).zip(value.chunks_exact_mut(LANES)) {
            // SAFETY: the slot and the dimensions are of the head, and `value` is a whole vector.
            unsafe { head.value::<V>(slot, dim).store(value.as_mut_ptr()) };
        }
        let place = key_place(index, key_stride);
        for (key, value) in keys[place..].iter_mut().step_by(BLOCK_TOKENS).zip(&value[..shape.key_dim]) {
            *key = *value;
        }
    }
}

/// Where the keys of a span have the first dimension of the position at this index.
#[inline(always)]
fn key_place(index: usize, key_stride: usize) -> usize {
    index / BLOCK_TOKENS * BLOCK_TOKENS * key_stride + index % BLOCK_TOKENS
}

/// Copies the first `dims` dimensions of a block's keys, `[dim, 16 positions]`, to its values, `[16 positions,
/// stride]`.
///
/// # Safety
/// Both are valid for these sizes and do not overlap.
#[inline(always)]
unsafe fn transpose(keys: *const f32, values: *mut f32, dims: usize, stride: usize) {
    // In squares, so that written cache lines stay in the cache until they are full.
    for first in (0..dims).step_by(LANES) {
        for slot in 0..BLOCK_TOKENS {
            for dim in first..dims.min(first + LANES) {
                // SAFETY: the caller fulfils the same conditions.
                unsafe { *values.add(slot * stride + dim) = *keys.add(dim * BLOCK_TOKENS + slot) };
            }
        }
    }
}

per_vector! {
    /// [`tiles`] of a span in single precision, compiled once for all ways to store keys and values.
    ///
    /// # Safety
    /// The span must be valid.
    unsafe fn plain_tiles = tiles(queries: &Queries<'_>, span: &[PlainHead<f32>], start: usize, partials: &mut [f32])
}

/// Adds a span that starts at position `start` to the partials of all queries.
///
/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn tiles<V: Vector>(queries: &Queries<'_>, span: &[impl StoredHead], start: usize, partials: &mut [f32]) {
    // Rows before the span do not see it, nor do rows whose window starts after it.
    let len = span.len() * BLOCK_TOKENS;
    let sees = |index: &usize| !queries.visible_in(*index, start, len).is_empty();
    let first = (0..queries.len()).find(sees).unwrap_or(queries.len());
    let end = (first..queries.len()).find(|index| !sees(index)).unwrap_or(queries.len());
    let mut index = first;
    while index < end {
        // SAFETY: the caller fulfils the same conditions.
        index += unsafe {
            match end - index {
                4.. => tile::<V, _, 4>(queries, index, span, start, partials),
                3 => tile::<V, _, 3>(queries, index, span, start, partials),
                2 => tile::<V, _, 2>(queries, index, span, start, partials),
                _ => tile::<V, _, 1>(queries, index, span, start, partials),
            }
        };
    }
}

/// Adds a span to the partials of the queries `first..first + N`; returns `N`.
///
/// # Safety
/// As [`gather_vectors`].
#[inline(always)]
unsafe fn tile<V: Vector, H: StoredHead, const N: usize>(
    queries: &Queries<'_>,
    first: usize,
    span: &[H],
    start: usize,
    partials: &mut [f32],
) -> usize {
    let (attention, tokens) = (queries.attention, span.len() * BLOCK_TOKENS);
    let mut seen = tokens..0;
    let partial_len = partials.len() / queries.len();
    let mut inputs = [std::ptr::null(); N];
    let mut outputs = [std::ptr::null_mut(); N];
    let mut visible: [Range<usize>; N] = [const { 0..0 }; N];
    for n in 0..N {
        inputs[n] = queries.query[queries.offset(first + n)..][..attention.kv.key_dim].as_ptr();
        outputs[n] = partials[(first + n) * partial_len..][..partial_len][HEADER..].as_mut_ptr();
        visible[n] = queries.visible_in(first + n, start, tokens);
        seen = seen.start.min(visible[n].start)..seen.end.max(visible[n].end);
    }
    let mut scores = [[0.0; SPAN_TOKENS]; N];
    // SAFETY: by the lines above, inputs are `key_dim` values, and outputs are whole vectors that do not overlap; the
    // caller fulfils the other conditions.
    unsafe {
        let abreast = const { abreast(V::SUMS, N) };
        let mut block = 0;
        while block < span.len() {
            let at = block * BLOCK_TOKENS;
            block += match (abreast, &span[block..]) {
                (4, &[a, b, c, d]) => {
                    form_scores::<V, H, N, 4>(&inputs, [a, b, c, d], attention.kv.key_dim, at, &mut scores)
                }
                (2.., &[a, b, ..]) => form_scores::<V, H, N, 2>(&inputs, [a, b], attention.kv.key_dim, at, &mut scores),
                _ => form_scores::<V, H, N, 1>(&inputs, [span[block]], attention.kv.key_dim, at, &mut scores),
            };
        }
        for n in 0..N {
            let scores = &mut scores[n][..tokens];
            let scale = cap_and_slope(queries, first + n, start, scores);
            // Slots outside the visible range get a weight of 0, whatever the cache holds there.
            scores[..visible[n].start].fill(f32::NEG_INFINITY);
            scores[visible[n].end..].fill(f32::NEG_INFINITY);
            let header = outputs[n].sub(HEADER).cast::<[f32; HEADER]>();
            let rescale = weigh_span::<V>(&mut *header, scores, scale);
            if rescale != 1.0 {
                for dim in (0..partial_len - HEADER).step_by(LANES) {
                    let output = outputs[n].add(dim);
                    V::load(output).multiply(V::splat(rescale)).store(output);
                }
            }
        }
        // All of these positions are stored, since one of the queries sees them; the other queries give them a weight
        // of 0.
        add_values::<V, H, N>(&scores, span, seen, &outputs, partial_len - HEADER);
    }
    N
}

/// Applies the soft cap and the slope of a query to its products with the keys from position `start` on. Returns the factor
/// that the products still lack.
#[inline(always)]
fn cap_and_slope(queries: &Queries<'_>, index: usize, start: usize, scores: &mut [f32]) -> f32 {
    let Attention { scale, softcap: cap, ref slopes, .. } = *queries.attention;
    match cap {
        Some(cap) => scores.iter_mut().for_each(|score| *score = softcap(*score * scale, cap)),
        None if slopes.is_none() => return scale,
        None => scores.iter_mut().for_each(|score| *score *= scale),
    }
    if let Some(slopes) = slopes {
        let slope = slopes[queries.row_and_head(index).1];
        let first = start as f32 - queries.position(index) as f32;
        for (offset, score) in (0_u16..).zip(scores) {
            *score -= slope * (first + f32::from(offset)).abs();
        }
    }
    1.0
}

/// The number of vectors of running sums for each of `n` queries that fit the registers.
const fn abreast(sums: usize, n: usize) -> usize {
    match sums / n {
        0 => 1,
        SPAN_BLOCKS.. => SPAN_BLOCKS,
        some => some,
    }
}

/// Writes the dot products of `N` queries with the keys of `B` blocks to the scores from `at` on; returns `B`.
///
/// # Safety
/// As [`StoredHead`]; each input has `key_dim` values.
#[inline(always)]
unsafe fn form_scores<V: Vector, H: StoredHead, const N: usize, const B: usize>(
    inputs: &[*const f32; N],
    blocks: [H; B],
    key_dim: usize,
    at: usize,
    scores: &mut [[f32; SPAN_TOKENS]; N],
) -> usize {
    assert!(at + B * BLOCK_TOKENS <= SPAN_TOKENS);
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        let mut sums = [[V::splat(0.0); B]; N];
        let mut scales = [V::splat(1.0); B];
        for group in (0..key_dim).step_by(SCALE_GROUP) {
            for (scales, block) in scales.iter_mut().zip(blocks) {
                *scales = block.key_scales(group / SCALE_GROUP);
            }
            for dim in group..key_dim.min(group + SCALE_GROUP) {
                let mut keys = [V::splat(0.0); B];
                for ((keys, block), scales) in keys.iter_mut().zip(blocks).zip(scales) {
                    *keys = block.keys(dim, scales);
                }
                for (sums, input) in sums.iter_mut().zip(inputs) {
                    let x = V::splat(*input.add(dim));
                    for (sum, keys) in sums.iter_mut().zip(keys) {
                        *sum = x.multiply_add(keys, *sum);
                    }
                }
            }
        }
        for (sums, scores) in sums.iter().zip(scores) {
            for (block, sum) in sums.iter().enumerate() {
                sum.store(scores.as_mut_ptr().add(at + block * BLOCK_TOKENS));
            }
        }
    }
    B
}

/// Adds the values of the positions in `range`, times their weights, in the order of positions.
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
        // SAFETY: the caller fulfils the same conditions.
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

/// Adds `J` vectors of the values from dimension `dim` on; returns `J`.
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
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        let mut sums = [[V::splat(0.0); J]; N];
        for (sums, output) in sums.iter_mut().zip(outputs) {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(output.add(dim + j * LANES));
            }
        }
        let mut slot = range.start;
        while slot < range.end {
            let head = span[slot / BLOCK_TOKENS];
            let end = range.end.min((slot / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
            while slot < end {
                let mut values = [V::splat(0.0); J];
                for (j, values) in values.iter_mut().enumerate() {
                    *values = head.value(slot % BLOCK_TOKENS, dim + j * LANES);
                }
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    let weight = V::splat(weights[slot]);
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = weight.multiply_add(values, *sum);
                    }
                }
                slot += 1;
            }
        }
        for (sums, output) in sums.iter().zip(outputs) {
            for (j, sum) in sums.iter().enumerate() {
                sum.store(output.add(dim + j * LANES));
            }
        }
    }
    J
}

/// Replaces the scores of some blocks, times `scale`, by weights relative to the new maximum. Returns the factor by
/// which earlier sums must be multiplied. The header holds the maximum and the sums of the weights.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn weigh_span<V: Vector>(header: &mut [f32; HEADER], scores: &mut [f32], scale: f32) -> f32 {
    let before = header[GREATEST];
    let scores = scores.as_chunks_mut::<BLOCK_TOKENS>().0;
    // SAFETY: each chunk is a vector, and so are the sums; the caller fulfils the other conditions.
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
            // Weights below the range of `exp` are 0, and so are those of positions that a query does not see.
            let weights = exp(below).where_above(below, -87.0);
            sums = sums.add(weights);
            weights.store(scores.as_mut_ptr());
        }
        sums.store(header.as_mut_ptr());
        header[GREATEST] = greatest;
        rescale
    }
}
