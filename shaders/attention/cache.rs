//! The storage of keys and values: blocks of 16 positions.
//!
//! A layer's values are laid out `[block, kv head, position in block, head_dim]`, its keys
//! `[block, kv head, head_dim, position in block]`: one head of one block is contiguous, and the scores of its sixteen
//! positions are lanes side by side. Which block belongs to which sequence is not known here.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::MAX_HEAD_DIM;
use crate::lanes::widen;
use crate::pages::{Pages, Plain};

/// Positions in a block.
pub const BLOCK_TOKENS: usize = 16;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// Bytes of one value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
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

    /// Bytes of one block of this layer, keys and values together.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        (2 * BLOCK_TOKENS * self.width() * kv_type.bytes()) as u64
    }
}

/// The keys and values of all layers.
pub struct KvCache {
    layers: Vec<Layer>,
}

struct Layer {
    shape: KvShape,
    keys: Plane,
    values: Plane,
}

impl KvCache {
    /// Room for `n_blocks` blocks in every layer. The system hands out the memory zeroed.
    #[must_use]
    pub fn new(shapes: Vec<KvShape>, n_blocks: usize, kv_type: KvType) -> Self {
        let layers = shapes
            .into_iter()
            .map(|shape| {
                let len = n_blocks * BLOCK_TOKENS * shape.width();
                Layer { shape, keys: Plane::new(kv_type, len), values: Plane::new(kv_type, len) }
            })
            .collect();
        KvCache { layers }
    }

    /// A cache without layers, for ops that do not look at it.
    #[must_use]
    pub fn empty() -> Self {
        KvCache { layers: Vec::new() }
    }

    /// Bytes of one position in a layer, key and value together.
    ///
    /// # Panics
    /// When there is no such layer.
    #[must_use]
    pub fn position_bytes(&self, layer: usize) -> u64 {
        let layer = &self.layers[layer];
        let kv_type = match layer.keys {
            Plane::F16(_) => KvType::F16,
            Plane::F32(_) => KvType::F32,
        };
        (2 * layer.shape.width() * kv_type.bytes()) as u64
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
            let offset = layer.head_offset(block, head);
            // SAFETY: this slot is ours by the caller's promise.
            unsafe {
                layer.keys.write_column(offset + slot, key);
                layer.values.write(offset + slot * head_dim, value);
            }
        }
    }

    /// Reads one head of one block, widened to f32: all keys, [head_dim, [`BLOCK_TOKENS`]], of which those of positions
    /// never stored have no meaning, and the values of the first `slots` positions, [slots, head_dim].
    ///
    /// # Panics
    /// When the block, head or slots are out of range, or the outputs are too short.
    ///
    /// # Safety
    /// No other thread may write this block at the same time; with `FMA` the machine must have F16C.
    #[inline(always)]
    pub(super) unsafe fn load<const FMA: bool>(
        &self,
        layer: usize,
        block: u32,
        head: usize,
        slots: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) {
        let layer = &self.layers[layer];
        assert!(slots <= BLOCK_TOKENS);
        let offset = layer.head_offset(block, head);
        let head_dim = layer.shape.head_dim;
        // SAFETY: nobody writes them now, and F16C is there, by the caller's promise.
        unsafe {
            layer.keys.read::<FMA>(offset, &mut keys[..BLOCK_TOKENS * head_dim]);
            layer.values.read::<FMA>(offset, &mut values[..slots * head_dim]);
        }
    }
}

impl KvCache {
    /// Asks the memory for one head of one block, so that a later [`KvCache::load`] does not wait for it.
    #[inline(always)]
    pub(super) fn prefetch(&self, layer: usize, block: u32, head: usize) {
        let layer = &self.layers[layer];
        let (offset, len) = (layer.head_offset(block, head), BLOCK_TOKENS * layer.shape.head_dim);
        layer.keys.prefetch(offset, len);
        layer.values.prefetch(offset, len);
    }
}

impl Layer {
    fn head_offset(&self, block: u32, head: usize) -> usize {
        assert!(head < self.shape.n_kv_heads);
        (block as usize * self.shape.n_kv_heads + head) * BLOCK_TOKENS * self.shape.head_dim
    }
}

/// Values that several threads write at once, each its own part.
enum Plane {
    F16(SharedCells<f16>),
    F32(SharedCells<f32>),
}

impl Plane {
    fn new(kv_type: KvType, len: usize) -> Self {
        match kv_type {
            KvType::F16 => Plane::F16(SharedCells::new(len)),
            KvType::F32 => Plane::F32(SharedCells::new(len)),
        }
    }

    /// # Safety
    /// No other thread may touch these values at the same time.
    unsafe fn write(&self, offset: usize, values: &[f32]) {
        // SAFETY: ours by the caller's promise.
        unsafe {
            match self {
                Plane::F16(cells) => cells.get_mut(offset, values.len()).convert_from_f32_slice(values),
                Plane::F32(cells) => cells.get_mut(offset, values.len()).copy_from_slice(values),
            }
        }
    }

    /// Writes every [`BLOCK_TOKENS`]th value from `offset` on.
    ///
    /// # Safety
    /// No other thread may touch these values at the same time.
    unsafe fn write_column(&self, offset: usize, values: &[f32]) {
        let places = (offset..).step_by(BLOCK_TOKENS);
        // SAFETY: ours by the caller's promise.
        unsafe {
            match self {
                Plane::F16(cells) => {
                    let mut halves = [f16::ZERO; MAX_HEAD_DIM];
                    let halves = &mut halves[..values.len()];
                    halves.convert_from_f32_slice(values);
                    places.zip(halves).for_each(|(place, half)| cells.get_mut(place, 1)[0] = *half);
                }
                Plane::F32(cells) => {
                    places.zip(values).for_each(|(place, value)| cells.get_mut(place, 1)[0] = *value);
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize, len: usize) {
        let (bytes, start) = match self {
            Plane::F16(cells) => (2 * len, cells.part(offset, len).cast::<u8>().cast_const()),
            Plane::F32(cells) => (4 * len, cells.part(offset, len).cast::<u8>().cast_const()),
        };
        #[cfg(target_arch = "x86_64")]
        for line in (0..bytes).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch never faults, and every x86-64 machine has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (bytes, start);
    }

    /// # Safety
    /// No other thread may write these values at the same time; with `FMA` the machine must have F16C.
    #[inline(always)]
    unsafe fn read<const FMA: bool>(&self, offset: usize, values: &mut [f32]) {
        // SAFETY: not written now, and F16C is there, by the caller's promise.
        unsafe {
            match self {
                Plane::F16(cells) => widen::<FMA>(cells.get(offset, values.len()), values),
                Plane::F32(cells) => values.copy_from_slice(cells.get(offset, values.len())),
            }
        }
    }
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
    /// Nobody may write this part while the slice lives.
    unsafe fn get(&self, offset: usize, len: usize) -> &[T] {
        // SAFETY: in bounds, not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.part(offset, len), len) }
    }

    /// # Safety
    /// Nobody else may touch this part while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get_mut(&self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds, not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.part(offset, len), len) }
    }
}
