//! The KV cache on the CPU: blocks of 16 positions.
//!
//! A layer's values are laid out `[block, kv head, position in block, value_dim]`, its keys `[block, kv head, key_dim,
//! position in block]`. One head of one block is contiguous, and the scores of its sixteen positions are the lanes of
//! one vector. Dimensions are rounded up to whole vectors of sixteen; the padding stays 0. The cache does not know
//! which block belongs to which sequence.

use half::f16;

use super::planes::Planes;
use super::scaled::ScaledPlanes;
use super::shape::{BLOCK_TOKENS, KvShape, KvType};

/// The keys and values of all layers.
pub struct KvCache {
    layers: Vec<Layer>,
}

/// One layer.
pub(crate) struct Layer {
    shape: KvShape,
    pub(crate) store: Store,
}

/// A layer's memory, by type.
pub(crate) enum Store {
    F16(Planes<f16>),
    F32(Planes<f32>),
    Q8(ScaledPlanes),
}

impl KvCache {
    /// A cache with `n_blocks` blocks in every layer. The system provides the memory zeroed.
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

    /// A cache without layers, for ops that do not read it.
    #[must_use]
    pub fn empty() -> Self {
        KvCache { layers: Vec::new() }
    }

    /// One layer.
    pub(crate) fn layer(&self, layer: usize) -> &Layer {
        &self.layers[layer]
    }

    /// The bytes of one position in each layer, key and value together.
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

    /// Stores one position. `key` is [n_kv_heads * key_dim]; `value` is [n_kv_heads * value_dim], or empty where values
    /// are part of the keys.
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
            // SAFETY: the caller promises that no other thread uses this slot.
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
    /// The index of a head of a block, counted through all blocks.
    pub(crate) fn head_index(&self, block: u32, head: usize) -> usize {
        assert!(head < self.shape.n_kv_heads);
        block as usize * self.shape.n_kv_heads + head
    }
}
