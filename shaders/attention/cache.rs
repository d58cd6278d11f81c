//! The storage of keys and values: blocks of 16 positions.
//!
//! A layer's values are laid out `[block, kv head, position in block, head_dim]`, its keys
//! `[block, kv head, head_dim, position in block]`: one head of one block is contiguous, and the scores of its sixteen
//! positions are lanes side by side. `head_dim` is rounded up to whole vectors of sixteen; what is in the gap stays 0.
//! Which block belongs to which sequence is not known here.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::MAX_HEAD_DIM;
use crate::pages::{Pages, Plain};
use crate::vector::{LANES, Vector};

/// Positions in a block: the lanes of a vector.
pub const BLOCK_TOKENS: usize = LANES;

/// Values that share a scale in [`KvType::Q8_0`].
pub(super) const SCALE_GROUP: usize = 32;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// Eight bits, and a half-precision scale for 32 values of a position's head.
    Q8_0,
}

impl KvType {
    /// Every type.
    pub const ALL: &[KvType] = &[KvType::F16, KvType::F32, KvType::Q8_0];

    /// The name that `--kv-type` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// Bytes of `values` values of one position's head.
    fn bytes(self, values: usize) -> usize {
        match self {
            KvType::F16 => 2 * values,
            KvType::F32 => 4 * values,
            KvType::Q8_0 => values + values.div_ceil(SCALE_GROUP) * size_of::<f16>(),
        }
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for KvType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        KvType::ALL.iter().copied().find(|kv_type| kv_type.name() == name).ok_or_else(|| {
            let known: Vec<_> = KvType::ALL.iter().map(|kv_type| kv_type.name()).collect();
            format!("unknown type {name:?}; known types: {}", known.join(", "))
        })
    }
}

/// The shape of one layer's keys (and values).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
}

impl KvShape {
    /// Values of one position.
    #[must_use]
    pub fn width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Values of a head as stored: whole vectors.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of one block of this layer, keys and values together.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        (2 * BLOCK_TOKENS * self.n_kv_heads * kv_type.bytes(self.stride())) as u64
    }
}

/// The keys and values of all layers.
pub struct KvCache {
    layers: Vec<Layer>,
}

/// One layer.
pub(super) struct Layer {
    shape: KvShape,
    pub(super) store: Store,
}

/// A layer's memory, by type.
pub(super) enum Store {
    F16(Planes<f16>),
    F32(Planes<f32>),
    Q8(ScaledPlanes),
}

impl KvCache {
    /// Room for `n_blocks` blocks in every layer. The system hands out the memory zeroed.
    #[must_use]
    pub fn new(shapes: Vec<KvShape>, n_blocks: usize, kv_type: KvType) -> Self {
        let layers = shapes
            .into_iter()
            .map(|shape| {
                let heads = n_blocks * shape.n_kv_heads;
                let store = match kv_type {
                    KvType::F16 => Store::F16(Planes::new(heads, shape.stride())),
                    KvType::F32 => Store::F32(Planes::new(heads, shape.stride())),
                    KvType::Q8_0 => Store::Q8(ScaledPlanes::new(heads, shape.stride())),
                };
                Layer { shape, store }
            })
            .collect();
        KvCache { layers }
    }

    /// A cache without layers, for ops that do not look at it.
    #[must_use]
    pub fn empty() -> Self {
        KvCache { layers: Vec::new() }
    }

    /// One layer.
    pub(super) fn layer(&self, layer: usize) -> &Layer {
        &self.layers[layer]
    }

    /// For each layer the bytes of one position, key and value together.
    #[must_use]
    pub fn position_bytes(&self) -> Vec<u64> {
        let of_layer = |layer: &Layer| {
            let kv_type = match layer.store {
                Store::F16(_) => KvType::F16,
                Store::F32(_) => KvType::F32,
                Store::Q8(_) => KvType::Q8_0,
            };
            layer.shape.block_bytes(kv_type) / BLOCK_TOKENS as u64
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// Stores one position: `key` and `value` are [n_kv_heads * head_dim].
    ///
    /// # Panics
    /// When the block, slot or shape is out of range.
    ///
    /// # Safety
    /// No other thread may read or write the same slot of the same block at the same time.
    pub unsafe fn store(&self, layer: usize, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        let layer = &self.layers[layer];
        let head_dim = layer.shape.head_dim;
        assert!(slot < BLOCK_TOKENS && key.len() == layer.shape.width() && value.len() == key.len());
        for (head, (key, value)) in key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim)).enumerate() {
            let index = layer.head_index(block, head);
            // SAFETY: this slot is ours by the caller's promise.
            unsafe {
                match &layer.store {
                    Store::F16(planes) => planes.write(index, slot, key, value),
                    Store::F32(planes) => planes.write(index, slot, key, value),
                    Store::Q8(planes) => planes.write(index, slot, key, value),
                }
            }
        }
    }
}

impl Layer {
    /// Which head of which block this is, counted through all blocks.
    pub(super) fn head_index(&self, block: u32, head: usize) -> usize {
        assert!(head < self.shape.n_kv_heads);
        block as usize * self.shape.n_kv_heads + head
    }
}

/// One type of storage.
pub(super) trait Storage {
    /// One head of one block.
    type Head: StoredHead;

    /// The head with this index (see [`Layer::head_index`]); a pointer that is good as long as the cache lives.
    ///
    /// # Panics
    /// When there is no such head.
    fn head(&self, index: usize) -> Self::Head;
}

/// One head of one block: keys `[head_dim, 16 positions]`, values `[16 positions, head_dim]`.
///
/// Every function needs the instruction set of its vectors, coordinates inside the head, and that nobody writes it now.
#[allow(clippy::missing_safety_doc)]
pub(super) trait StoredHead: Copy {
    /// What the keys of all positions in 32 dimensions, from `32 * group` on, are multiplied with.
    unsafe fn key_scales<V: Vector>(self, group: usize) -> V;
    /// Dimension `dim` of the keys of all positions, where `scales` are those of its group.
    unsafe fn keys<V: Vector>(self, dim: usize, scales: V) -> V;
    /// Sixteen dimensions, from `dim` on, of the value of one position.
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V;
    /// Asks the memory for the head.
    fn prefetch(self);
}

/// Values as they are, in half or single precision.
pub(super) struct Planes<T> {
    keys: SharedCells<T>,
    values: SharedCells<T>,
    stride: usize,
}

/// A number that vectors are loaded from.
pub(super) trait Number: Plain + Default {
    fn from_single(values: &[f32], out: &mut [Self]);
    /// Sixteen of them.
    ///
    /// # Safety
    /// As [`Vector`].
    unsafe fn load<V: Vector>(numbers: *const Self) -> V;
}

impl Number for f16 {
    fn from_single(values: &[f32], out: &mut [f16]) {
        out.convert_from_f32_slice(values);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(numbers: *const f16) -> V {
        // SAFETY: as the caller's.
        unsafe { V::load_halves(numbers) }
    }
}

impl Number for f32 {
    fn from_single(values: &[f32], out: &mut [f32]) {
        out.copy_from_slice(values);
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(numbers: *const f32) -> V {
        // SAFETY: as the caller's.
        unsafe { V::load(numbers) }
    }
}

impl<T: Number> Planes<T> {
    fn new(heads: usize, stride: usize) -> Self {
        let len = heads * BLOCK_TOKENS * stride;
        Planes { keys: SharedCells::new(len), values: SharedCells::new(len), stride }
    }

    /// # Safety
    /// No other thread may touch this slot at the same time.
    unsafe fn write(&self, index: usize, slot: usize, key: &[f32], value: &[f32]) {
        let start = index * BLOCK_TOKENS * self.stride;
        let mut numbers = [T::default(); MAX_HEAD_DIM];
        let numbers = &mut numbers[..key.len()];
        T::from_single(key, numbers);
        // SAFETY: ours by the caller's promise.
        unsafe {
            self.keys.write_column(start + slot, numbers);
            T::from_single(value, self.values.get_mut(start + slot * self.stride, value.len()));
        }
    }
}

impl<T: Number> Storage for Planes<T> {
    type Head = PlainHead<T>;

    fn head(&self, index: usize) -> PlainHead<T> {
        let len = BLOCK_TOKENS * self.stride;
        let (keys, values) = (self.keys.part(index * len, len), self.values.part(index * len, len));
        PlainHead { keys, values, stride: self.stride }
    }
}

/// One head of one block in half or single precision.
pub(super) struct PlainHead<T> {
    keys: *const T,
    values: *const T,
    stride: usize,
}

impl<T> PlainHead<T> {
    /// A head whose keys and values stand in memory of our own, `16 * stride` each.
    pub(super) fn of(keys: *const T, values: *const T, stride: usize) -> Self {
        PlainHead { keys, values, stride }
    }
}

impl<T> Clone for PlainHead<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PlainHead<T> {}

impl<T: Number> StoredHead for PlainHead<T> {
    #[inline(always)]
    unsafe fn key_scales<V: Vector>(self, _: usize) -> V {
        // SAFETY: the caller has the instruction set.
        unsafe { V::splat(1.0) }
    }

    #[inline(always)]
    unsafe fn keys<V: Vector>(self, dim: usize, _: V) -> V {
        // SAFETY: the caller's dimension is one of the head's.
        unsafe { T::load(self.keys.add(dim * BLOCK_TOKENS)) }
    }

    #[inline(always)]
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V {
        // SAFETY: the caller's coordinates are inside the head.
        unsafe { T::load(self.values.add(slot * self.stride + dim)) }
    }

    #[inline(always)]
    fn prefetch(self) {
        let bytes = BLOCK_TOKENS * self.stride * size_of::<T>();
        prefetch(self.keys.cast(), bytes);
        prefetch(self.values.cast(), bytes);
    }
}

/// Eight bits a value, and scales.
///
/// The scales of keys are `[block, kv head, group, position]`, those of values `[block, kv head, position, group]`.
pub(super) struct ScaledPlanes {
    codes: Planes<i8>,
    key_scales: SharedCells<f16>,
    value_scales: SharedCells<f16>,
    groups: usize,
}

impl Planes<i8> {
    fn of_codes(heads: usize, stride: usize) -> Self {
        let len = heads * BLOCK_TOKENS * stride;
        Planes { keys: SharedCells::new(len), values: SharedCells::new(len), stride }
    }
}

impl ScaledPlanes {
    fn new(heads: usize, stride: usize) -> Self {
        let groups = stride.div_ceil(SCALE_GROUP);
        let scales = || SharedCells::new(heads * BLOCK_TOKENS * groups);
        ScaledPlanes { codes: Planes::of_codes(heads, stride), key_scales: scales(), value_scales: scales(), groups }
    }

    /// # Safety
    /// No other thread may touch this slot at the same time.
    unsafe fn write(&self, index: usize, slot: usize, key: &[f32], value: &[f32]) {
        let stride = self.codes.stride;
        let (start, first_scale) = (index * BLOCK_TOKENS * stride, index * BLOCK_TOKENS * self.groups);
        let mut codes = [0; SCALE_GROUP];
        for (group, values) in key.chunks(SCALE_GROUP).enumerate() {
            let codes = &mut codes[..values.len()];
            let scale = round_to_bytes(values, codes);
            // SAFETY: ours by the caller's promise.
            unsafe {
                self.key_scales.get_mut(first_scale + group * BLOCK_TOKENS + slot, 1)[0] = scale;
                self.codes.keys.write_column(start + group * SCALE_GROUP * BLOCK_TOKENS + slot, codes);
            }
        }
        for (group, values) in value.chunks(SCALE_GROUP).enumerate() {
            // SAFETY: ours by the caller's promise.
            unsafe {
                let codes = self.codes.values.get_mut(start + slot * stride + group * SCALE_GROUP, values.len());
                let scale = round_to_bytes(values, codes);
                self.value_scales.get_mut(first_scale + slot * self.groups + group, 1)[0] = scale;
            }
        }
    }
}

/// Rounds values to integers of -127 to 127 and returns the scale, which is not finite where the values are not.
fn round_to_bytes(values: &[f32], codes: &mut [i8]) -> f16 {
    let largest = values.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let scale = f16::from_f32(f32::from_bits(largest) / 127.0);
    // The inverse of the scale as stored: half precision may have rounded it.
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    // Adding and subtracting this rounds to the nearest integer, in the instructions of every machine.
    const ROUND: f32 = 12_582_912.0;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value * inverse).clamp(-127.0, 127.0) + ROUND - ROUND) as i8;
    }
    scale
}

impl Storage for ScaledPlanes {
    type Head = ScaledHead;

    fn head(&self, index: usize) -> ScaledHead {
        let (codes, scales) = (BLOCK_TOKENS * self.codes.stride, BLOCK_TOKENS * self.groups);
        ScaledHead {
            keys: self.codes.keys.part(index * codes, codes),
            values: self.codes.values.part(index * codes, codes),
            key_scales: self.key_scales.part(index * scales, scales),
            value_scales: self.value_scales.part(index * scales, scales),
            stride: self.codes.stride,
            groups: self.groups,
        }
    }
}

/// One head of one block in eight bits.
#[derive(Clone, Copy)]
pub(super) struct ScaledHead {
    keys: *const i8,
    values: *const i8,
    key_scales: *const f16,
    value_scales: *const f16,
    stride: usize,
    groups: usize,
}

impl StoredHead for ScaledHead {
    #[inline(always)]
    unsafe fn key_scales<V: Vector>(self, group: usize) -> V {
        // SAFETY: the caller's group is one of the head's.
        unsafe { V::load_halves(self.key_scales.add(group * BLOCK_TOKENS)) }
    }

    #[inline(always)]
    unsafe fn keys<V: Vector>(self, dim: usize, scales: V) -> V {
        // SAFETY: the caller's dimension is one of the head's.
        unsafe { V::load_bytes(self.keys.add(dim * BLOCK_TOKENS)).multiply(scales) }
    }

    #[inline(always)]
    unsafe fn value<V: Vector>(self, slot: usize, dim: usize) -> V {
        // SAFETY: the caller's coordinates are inside the head.
        unsafe {
            let scale = *self.value_scales.add(slot * self.groups + dim / SCALE_GROUP);
            V::load_bytes(self.values.add(slot * self.stride + dim)).multiply(V::splat_half(scale))
        }
    }

    #[inline(always)]
    fn prefetch(self) {
        prefetch(self.keys.cast(), BLOCK_TOKENS * self.stride);
        prefetch(self.values.cast(), BLOCK_TOKENS * self.stride);
        prefetch(self.key_scales.cast(), BLOCK_TOKENS * self.groups * size_of::<f16>());
        prefetch(self.value_scales.cast(), BLOCK_TOKENS * self.groups * size_of::<f16>());
    }
}

/// Asks the memory for some bytes.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, and every x86-64 machine has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Values that are written through shared references.
struct SharedCells<T>(Pages<T>);

// SAFETY: every access goes through methods whose callers promise that nobody else touches the same part.
unsafe impl<T: Send + Sync> Sync for SharedCells<T> {}

impl<T: Plain> SharedCells<T> {
    fn new(len: usize) -> Self {
        SharedCells(Pages::zeroed(len))
    }

    /// Where a part starts; checks that it is one.
    fn part(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.0.len()), "a part of the cache");
        // SAFETY: within the pages, by the line above.
        unsafe { self.0.as_ptr().add(offset) }
    }

    /// # Safety
    /// Nobody else may touch this part while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get_mut(&self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds, not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.part(offset, len), len) }
    }

    /// Writes every [`BLOCK_TOKENS`]th value from `offset` on.
    ///
    /// # Safety
    /// No other thread may touch these values at the same time.
    unsafe fn write_column(&self, offset: usize, values: &[T]) {
        for (place, value) in (offset..).step_by(BLOCK_TOKENS).zip(values) {
            // SAFETY: in bounds, ours by the caller's promise.
            unsafe { *self.part(place, 1) = *value };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_within_half_a_step_and_keep_what_is_not_finite() {
        let values = crate::testing::values(7, SCALE_GROUP);
        let mut codes = [0; SCALE_GROUP];
        let scale = round_to_bytes(&values, &mut codes).to_f32();
        for (value, code) in values.iter().zip(codes) {
            assert!((value - scale * f32::from(code)).abs() <= 0.51 * scale, "{value} became {code} of {scale}");
        }
        assert_eq!(round_to_bytes(&[0.0; 4], &mut codes[..4]), f16::ZERO);
        assert_eq!(codes[..4], [0; 4]);
        assert!(!round_to_bytes(&[1.0, f32::NAN], &mut codes[..2]).is_finite());
        assert!(!round_to_bytes(&[1.0, f32::INFINITY], &mut codes[..2]).is_finite());
    }

    #[test]
    fn a_block_takes_what_its_type_says() {
        let shape = KvShape { n_kv_heads: 2, head_dim: 64 };
        let bytes = |kv_type| shape.block_bytes(kv_type);
        assert_eq!((bytes(KvType::F32), bytes(KvType::F16), bytes(KvType::Q8_0)), (16384, 8192, 4352));
    }
}
