//! The storage of keys and values: blocks of 16 positions.
//!
//! A layer's values are laid out `[block, kv head, position in block, value_dim]`, its keys
//! `[block, kv head, key_dim, position in block]`: one head of one block is contiguous, and the scores of its sixteen
//! positions are lanes side by side. Dimensions are rounded up to whole vectors of sixteen; what is in the gap stays 0.
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

/// The shape of one layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Values in the key of a head, and in a query.
    pub key_dim: usize,
    /// Values in the value of a head.
    pub value_dim: usize,
    /// Whether a value is the first `value_dim` values of its key, so that only keys are stored.
    pub values_in_keys: bool,
}

impl KvShape {
    /// Heads whose keys and values are equally long.
    #[must_use]
    pub fn grouped(n_kv_heads: usize, head_dim: usize) -> Self {
        KvShape { n_kv_heads, key_dim: head_dim, value_dim: head_dim, values_in_keys: false }
    }

    /// Latent attention: one head for all queries, whose key is a latent vector of `value_dim` values, which is the value as
    /// well, and what is rotated.
    #[must_use]
    pub fn latent(key_dim: usize, value_dim: usize) -> Self {
        KvShape { n_kv_heads: 1, key_dim, value_dim, values_in_keys: true }
    }

    /// Values in the keys of one position.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.n_kv_heads * self.key_dim
    }

    /// Values in the values of one position.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.n_kv_heads * self.value_dim
    }

    /// Of these, how many are stored by themselves.
    #[must_use]
    pub fn stored_value_width(&self) -> usize {
        self.n_kv_heads * self.stored_value_dim()
    }

    /// Values of a head that are stored beside its key.
    #[must_use]
    pub fn stored_value_dim(&self) -> usize {
        if self.values_in_keys { 0 } else { self.value_dim }
    }

    /// Values of a head's key, and of its value, as stored: whole vectors.
    fn strides(&self) -> [usize; 2] {
        [self.key_dim, self.stored_value_dim()].map(|dim| dim.next_multiple_of(LANES))
    }

    /// Bytes of one block of this layer, keys and values together.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        let of_position: usize = self.strides().iter().map(|stride| kv_type.bytes(*stride)).sum();
        (BLOCK_TOKENS * self.n_kv_heads * of_position) as u64
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
                    KvType::F16 => Store::F16(Planes::new(heads, shape.strides())),
                    KvType::F32 => Store::F32(Planes::new(heads, shape.strides())),
                    KvType::Q8_0 => Store::Q8(ScaledPlanes::new(heads, shape.strides())),
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

    /// Stores one position: `key` is [n_kv_heads * key_dim], `value` [n_kv_heads * value_dim], or empty where values are part
    /// of the keys.
    ///
    /// # Panics
    /// When the block, slot or shape is out of range.
    ///
    /// # Safety
    /// No other thread may read or write the same slot of the same block at the same time.
    pub unsafe fn store(&self, layer: usize, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        let layer = &self.layers[layer];
        let (key_dim, value_dim) = (layer.shape.key_dim, layer.shape.stored_value_dim());
        assert!(slot < BLOCK_TOKENS && key.len() == layer.shape.key_width());
        assert!(value.len() == layer.shape.stored_value_width());
        for head in 0..layer.shape.n_kv_heads {
            let (key, value) = (&key[head * key_dim..][..key_dim], &value[head * value_dim..][..value_dim]);
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

/// One head of one block: keys `[key_dim, 16 positions]`, values `[16 positions, value_dim]`.
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
    /// Of a key, and of a value.
    strides: [usize; 2],
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

impl<T: Plain> Planes<T> {
    fn new(heads: usize, strides: [usize; 2]) -> Self {
        let [keys, values] = strides.map(|stride| SharedCells::new(heads * BLOCK_TOKENS * stride));
        Planes { keys, values, strides }
    }

    fn head_at(&self, index: usize) -> PlainHead<T> {
        let [key_len, value_len] = self.strides.map(|stride| BLOCK_TOKENS * stride);
        let (keys, values) = (self.keys.part(index * key_len, key_len), self.values.part(index * value_len, value_len));
        PlainHead { keys, values, strides: self.strides }
    }
}

impl<T: Number> Planes<T> {
    /// # Safety
    /// No other thread may touch this slot at the same time.
    unsafe fn write(&self, index: usize, slot: usize, key: &[f32], value: &[f32]) {
        let [first_key, first_value] = self.strides.map(|stride| index * BLOCK_TOKENS * stride);
        let mut numbers = [T::default(); MAX_HEAD_DIM];
        let numbers = &mut numbers[..key.len()];
        T::from_single(key, numbers);
        // SAFETY: ours by the caller's promise.
        unsafe {
            self.keys.write_column(first_key + slot, numbers);
            T::from_single(value, self.values.get_mut(first_value + slot * self.strides[1], value.len()));
        }
    }
}

impl<T: Number> Storage for Planes<T> {
    type Head = PlainHead<T>;

    fn head(&self, index: usize) -> PlainHead<T> {
        self.head_at(index)
    }
}

/// One head of one block in half or single precision.
pub(super) struct PlainHead<T> {
    keys: *const T,
    values: *const T,
    strides: [usize; 2],
}

impl<T> PlainHead<T> {
    /// A head whose keys and values stand in memory of our own, 16 times their stride each.
    pub(super) fn of(keys: *const T, values: *const T, strides: [usize; 2]) -> Self {
        PlainHead { keys, values, strides }
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
        unsafe { T::load(self.values.add(slot * self.strides[1] + dim)) }
    }

    #[inline(always)]
    fn prefetch(self) {
        let [key_bytes, value_bytes] = self.strides.map(|stride| BLOCK_TOKENS * stride * size_of::<T>());
        prefetch(self.keys.cast(), key_bytes);
        prefetch(self.values.cast(), value_bytes);
    }
}

/// Eight bits a value, and scales.
///
/// The scales of keys are `[block, kv head, group, position]`, those of values `[block, kv head, position, group]`.
pub(super) struct ScaledPlanes {
    codes: Planes<i8>,
    key_scales: SharedCells<f16>,
    value_scales: SharedCells<f16>,
    /// Of a key, and of a value.
    groups: [usize; 2],
}

impl ScaledPlanes {
    fn new(heads: usize, strides: [usize; 2]) -> Self {
        let groups = strides.map(|stride| stride.div_ceil(SCALE_GROUP));
        let [key_scales, value_scales] = groups.map(|groups| SharedCells::new(heads * BLOCK_TOKENS * groups));
        ScaledPlanes { codes: Planes::new(heads, strides), key_scales, value_scales, groups }
    }

    /// # Safety
    /// No other thread may touch this slot at the same time.
    unsafe fn write(&self, index: usize, slot: usize, key: &[f32], value: &[f32]) {
        let [key_groups, value_groups] = self.groups;
        let first = |stride: usize| index * BLOCK_TOKENS * stride;
        let [first_key, first_value] = self.codes.strides.map(first);
        let (first_key_scale, first_value_scale) = (first(key_groups), first(value_groups));
        let mut codes = [0; SCALE_GROUP];
        for (group, values) in key.chunks(SCALE_GROUP).enumerate() {
            let codes = &mut codes[..values.len()];
            let scale = round_to_bytes(values, codes);
            // SAFETY: ours by the caller's promise.
            unsafe {
                self.key_scales.get_mut(first_key_scale + group * BLOCK_TOKENS + slot, 1)[0] = scale;
                self.codes.keys.write_column(first_key + group * SCALE_GROUP * BLOCK_TOKENS + slot, codes);
            }
        }
        for (group, values) in value.chunks(SCALE_GROUP).enumerate() {
            // SAFETY: ours by the caller's promise.
            unsafe {
                let start = first_value + slot * self.codes.strides[1] + group * SCALE_GROUP;
                let codes = self.codes.values.get_mut(start, values.len());
                let scale = round_to_bytes(values, codes);
                self.value_scales.get_mut(first_value_scale + slot * value_groups + group, 1)[0] = scale;
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
        let [key_scales, value_scales] = self.groups.map(|groups| BLOCK_TOKENS * groups);
        let PlainHead { keys, values, strides } = self.codes.head_at(index);
        ScaledHead {
            keys,
            values,
            key_scales: self.key_scales.part(index * key_scales, key_scales),
            value_scales: self.value_scales.part(index * value_scales, value_scales),
            strides,
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
    strides: [usize; 2],
    groups: [usize; 2],
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
            let scale = *self.value_scales.add(slot * self.groups[1] + dim / SCALE_GROUP);
            V::load_bytes(self.values.add(slot * self.strides[1] + dim)).multiply(V::splat_half(scale))
        }
    }

    #[inline(always)]
    fn prefetch(self) {
        let ([key_stride, value_stride], [key_groups, value_groups]) = (self.strides, self.groups);
        prefetch(self.keys.cast(), BLOCK_TOKENS * key_stride);
        prefetch(self.values.cast(), BLOCK_TOKENS * value_stride);
        prefetch(self.key_scales.cast(), BLOCK_TOKENS * key_groups * size_of::<f16>());
        prefetch(self.value_scales.cast(), BLOCK_TOKENS * value_groups * size_of::<f16>());
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
        let bytes = |shape: KvShape| [KvType::F32, KvType::F16, KvType::Q8_0].map(|kv_type| shape.block_bytes(kv_type));
        assert_eq!(bytes(KvShape::grouped(2, 64)), [16384, 8192, 4352]);
        let unequal = KvShape { value_dim: 128, ..KvShape::grouped(1, 192) };
        assert_eq!(bytes(unequal), [16 * 320 * 4, 16 * 320 * 2, 16 * (320 + 10 * 2)]);
        // Only keys.
        assert_eq!(bytes(KvShape::latent(576, 512)), [16 * 576 * 4, 16 * 576 * 2, 16 * (576 + 18 * 2)]);
    }
}
