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
        let of_layer = |layer: &Layer| layer.shape.block_bytes(layer.kv_type()) / BLOCK_TOKENS as u64;
        self.layers.iter().map(of_layer).collect()
    }

    /// Bytes of the content of a block over all layers.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.shape.block_bytes(layer.kv_type()) as usize).sum()
    }

    /// Copies the content of a block, of all layers, to `out`, which has [`KvCache::block_bytes`] bytes.
    ///
    /// # Panics
    /// When the block is out of range or `out` has another length.
    pub fn read_block(&mut self, block: u32, out: &mut [u8]) {
        let mut rest = out;
        for plane in self.block_planes(block) {
            let (here, later) = rest.split_at_mut(plane.len());
            here.copy_from_slice(plane);
            rest = later;
        }
        assert!(rest.is_empty(), "a copy has the length of a block");
    }

    /// Replaces the content of a block by what [`KvCache::read_block`] has copied from another cache of the same shape.
    ///
    /// # Panics
    /// As [`KvCache::read_block`].
    pub fn write_block(&mut self, block: u32, content: &[u8]) {
        let mut rest = content;
        for plane in self.block_planes(block) {
            let (here, later) = rest.split_at(plane.len());
            plane.copy_from_slice(here);
            rest = later;
        }
        assert!(rest.is_empty(), "a copy has the length of a block");
    }

    /// The parts of a block's content.
    fn block_planes(&mut self, block: u32) -> impl Iterator<Item = &mut [u8]> {
        self.layers.iter_mut().flat_map(move |layer| {
            let first = block as usize * layer.shape.n_kv_heads;
            let heads = first..first + layer.shape.n_kv_heads;
            let planes: Vec<&mut [u8]> = match &mut layer.store {
                Store::F16(planes) => planes.bytes(heads).into(),
                Store::F32(planes) => planes.bytes(heads).into(),
                Store::Q8(planes) => planes.bytes(heads).into(),
            };
            planes
        })
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

    fn kv_type(&self) -> KvType {
        match self.store {
            Store::F16(_) => KvType::F16,
            Store::F32(_) => KvType::F32,
            Store::Q8(_) => KvType::Q8_0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of unequal layers whose blocks have different contents.
    fn filled(kv_type: KvType) -> KvCache {
        let unequal = KvShape { value_dim: 24, ..KvShape::grouped(1, 40) };
        let cache = KvCache::new(vec![KvShape::grouped(2, 32), unequal, KvShape::latent(48, 32)], 5, kv_type);
        for (layer, shape) in [(0, KvShape::grouped(2, 32)), (1, unequal), (2, KvShape::latent(48, 32))] {
            for position in 0..5 * BLOCK_TOKENS {
                let key = crate::testing::values(position as u64, shape.key_width());
                let value = crate::testing::values(1000 + position as u64, shape.stored_value_width());
                // SAFETY: no other thread uses the cache.
                unsafe {
                    cache.store(layer, (position / BLOCK_TOKENS) as u32, position % BLOCK_TOKENS, &key, &value);
                }
            }
        }
        cache
    }

    fn content(cache: &mut KvCache, block: u32) -> Vec<u8> {
        let mut content = vec![0; cache.block_bytes()];
        cache.read_block(block, &mut content);
        content
    }

    #[test]
    fn a_copied_block_is_the_same_in_another_place_and_other_blocks_stay_as_they_are() {
        for kv_type in KvType::ALL {
            let mut from = filled(*kv_type);
            let contents: Vec<_> = (0..5).map(|block| content(&mut from, block)).collect();
            assert!(contents.windows(2).all(|pair| pair[0] != pair[1]));
            let mut to = filled(*kv_type);
            to.write_block(1, &contents[4]);
            let copied: Vec<_> = (0..5).map(|block| content(&mut to, block)).collect();
            assert_eq!(copied[1], contents[4], "{kv_type}");
            for other in [0, 2, 3, 4] {
                assert_eq!(copied[other], contents[other], "{kv_type}");
            }
        }
    }
}
