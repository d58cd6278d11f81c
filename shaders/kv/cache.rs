//! The KV cache on the CPU: blocks of 16 positions.
//!
//! A layer that selects the positions to which it attends has index keys too, in the same blocks.
//!
//! A layer's values are laid out `[block, kv head, position in block, value_dim]`, its keys `[block, kv head, key_dim,
//! position in block]`. One head of one block is contiguous, and the scores of its sixteen positions are the lanes of
//! one vector. Dimensions are rounded up to whole vectors of sixteen; the padding stays 0. The cache does not know
//! which block belongs to which sequence.

use half::f16;

use super::planes::Planes;
use super::scaled::ScaledPlanes;
use super::shape::{BLOCK_TOKENS, BlockCounts, KvShape, KvType};

/// The keys and values of all layers, and the index keys of those that select positions.
pub struct KvCache {
    layers: Vec<Layer>,
    /// As many as `layers`; without heads in layers that do not select positions.
    indexes: Vec<Layer>,
}

/// Bytes of one position of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionBytes {
    /// Of its key and value together.
    pub kv: u64,
    /// Of its index key.
    pub index: u64,
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
    /// A cache with `n_blocks` blocks in every layer, none of which has index keys. The system provides the memory zeroed.
    #[must_use]
    pub fn new(shapes: Vec<KvShape>, n_blocks: usize, kv_type: KvType) -> Self {
        let both = shapes.into_iter().map(|shape| [shape, KvShape::NONE]);
        KvCache::with_index_keys(both, BlockCounts::equal(n_blocks), kv_type)
    }

    /// As [`KvCache::new`], for layers with these shapes of keys and values, and of index keys.
    #[must_use]
    pub fn with_index_keys(shapes: impl Iterator<Item = [KvShape; 2]>, blocks: BlockCounts, kv_type: KvType) -> Self {
        let layer = |shape: KvShape| Layer::new(shape, blocks.of(shape), kv_type);
        let (layers, indexes) = shapes.map(|[kv, index]| (layer(kv), layer(index))).unzip();
        KvCache { layers, indexes }
    }

    /// A cache without layers, for ops that do not read it.
    #[must_use]
    pub fn empty() -> Self {
        KvCache { layers: Vec::new(), indexes: Vec::new() }
    }

    /// The keys and values of one layer.
    pub(crate) fn layer(&self, layer: usize) -> &Layer {
        &self.layers[layer]
    }

    /// The index keys of one layer.
    pub(crate) fn index(&self, layer: usize) -> &Layer {
        &self.indexes[layer]
    }

    /// The bytes of one position in each layer.
    #[must_use]
    pub fn position_bytes(&self) -> Vec<PositionBytes> {
        let of = |layer: &Layer| layer.block_bytes() / BLOCK_TOKENS as u64;
        let both = self.layers.iter().zip(&self.indexes);
        both.map(|(layer, index)| PositionBytes { kv: of(layer), index: of(index) }).collect()
    }

    /// Bytes of the content of a block over all layers.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.layers.iter().chain(&self.indexes).map(|layer| layer.block_bytes() as usize).sum()
    }

    /// Copies the content of a block, of all layers, to `out`, which has [`KvCache::block_bytes`] bytes.
    ///
    /// # Panics
    /// When the block is out of range, as also of a layer with fewer blocks, or `out` has another length.
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
        self.layers.iter_mut().chain(&mut self.indexes).flat_map(move |layer| {
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
    /// are part of the keys. With pools, `value` is the entry of the pool that ends at the position, or empty if none does.
    ///
    /// # Panics
    /// When the block, slot or shape is out of range.
    ///
    /// # Safety
    /// No other thread may read or write the same slot of the same block at the same time.
    pub unsafe fn store(&self, layer: usize, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        // SAFETY: the caller promises the same.
        unsafe { self.layers[layer].write(block, slot, key, value) };
    }

    /// Stores the index key of one position.
    ///
    /// # Panics
    /// As [`KvCache::store`].
    ///
    /// # Safety
    /// As [`KvCache::store`].
    pub unsafe fn store_index(&self, layer: usize, block: u32, slot: usize, key: &[f32]) {
        // SAFETY: the caller promises the same.
        unsafe { self.indexes[layer].write(block, slot, key, &[]) };
    }
}

impl Layer {
    fn new(shape: KvShape, n_blocks: usize, kv_type: KvType) -> Self {
        let heads = n_blocks * shape.n_kv_heads;
        let store = match kv_type {
            KvType::F16 => Store::F16(Planes::new(heads, shape.strides(), shape.value_slots())),
            KvType::F32 => Store::F32(Planes::new(heads, shape.strides(), shape.value_slots())),
            KvType::Q8_0 => Store::Q8(ScaledPlanes::new(heads, shape.strides(), shape.value_slots())),
        };
        Layer { shape, store }
    }

    /// Stores one position: see [`KvCache::store`].
    ///
    /// # Safety
    /// No other thread may read or write the same slot of the same block at the same time.
    unsafe fn write(&self, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        let (key_dim, value_dim) = (self.shape.key_dim, self.shape.stored_value_dim());
        assert!(slot < BLOCK_TOKENS && key.len() == self.shape.key_width());
        let ends_no_pool = self.shape.pool > 0 && value.is_empty();
        assert!(value.len() == self.shape.stored_value_width() || ends_no_pool);
        let (slots, value_dim) = ([slot, self.shape.value_slot(slot)], if ends_no_pool { 0 } else { value_dim });
        for head in 0..self.shape.n_kv_heads {
            let (key, value) = (&key[head * key_dim..][..key_dim], &value[head * value_dim..][..value_dim]);
            let index = self.head_index(block, head);
            // SAFETY: the caller promises that no other thread uses this slot.
            unsafe {
                match &self.store {
                    Store::F16(planes) => planes.write(index, slots, key, value),
                    Store::F32(planes) => planes.write(index, slots, key, value),
                    Store::Q8(planes) => planes.write(index, slots, key, value),
                }
            }
        }
    }

    /// Bytes of one block.
    fn block_bytes(&self) -> u64 {
        self.shape.block_bytes(self.kv_type())
    }

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
        let pooled = KvShape::latent(48, 48).with_pools(4).unwrap();
        let shapes = [KvShape::grouped(2, 32), unequal, KvShape::latent(48, 32), pooled];
        let both = shapes.map(|shape| [shape, if shape == unequal { KvShape::NONE } else { KvShape::index(20) }]);
        let cache = KvCache::with_index_keys(both.into_iter(), BlockCounts::equal(5), kv_type);
        for (layer, [shape, index]) in both.into_iter().enumerate() {
            for position in 0..5 * BLOCK_TOKENS {
                let key = crate::testing::values(position as u64, shape.key_width());
                let value = crate::testing::values(1000 + position as u64, shape.stored_value_width());
                let index_key = crate::testing::values(2000 + position as u64, index.key_width());
                let (block, slot) = ((position / BLOCK_TOKENS) as u32, position % BLOCK_TOKENS);
                // SAFETY: no other thread uses the cache.
                unsafe {
                    cache.store(layer, block, slot, &key, &value);
                    cache.store_index(layer, block, slot, &index_key);
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
    fn index_keys_count_as_bytes_of_a_block() {
        for kv_type in KvType::ALL {
            let of = |shape: KvShape| shape.block_bytes(*kv_type);
            let [kv, index] = [of(KvShape::latent(48, 32)), of(KvShape::index(20))];
            assert!(index > 0);
            let cache = filled(*kv_type);
            assert_eq!(cache.position_bytes()[2], PositionBytes { kv: kv / 16, index: index / 16 }, "{kv_type}");
            assert_eq!(cache.position_bytes()[1].index, 0, "{kv_type}");
            let others = [0, 1, 3].map(|layer| cache.position_bytes()[layer]);
            let rest: u64 = others.iter().map(|bytes| 16 * (bytes.kv + bytes.index)).sum();
            assert_eq!(cache.block_bytes() as u64, kv + index + rest, "{kv_type}");
        }
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
