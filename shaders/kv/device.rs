//! Keys and values on a device.

use super::shape::{BLOCK_TOKENS, KvShape, KvType};
use crate::gpu::Region;

/// The KV cache of all layers on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceKv {
    /// How values are stored.
    pub kv_type: KvType,
    /// The keys and the values of each layer: `[block, kv head]` records (`attention/cache.glsl`).
    pub layers: Vec<[Region; 2]>,
    /// The index keys of each layer, in the same form; without bytes in layers that do not select positions.
    pub indexes: Vec<Region>,
}

/// Bytes of the keys and of the values, or of the entries of pools, of one block of a layer. The values have none where they are
/// part of the keys.
#[must_use]
pub fn plane_block_bytes(shape: KvShape, kv_type: KvType) -> [u64; 2] {
    [(shape.key_dim, BLOCK_TOKENS), (shape.stored_value_dim(), shape.value_slots())].map(|(dim, slots)| {
        let stride = dim.next_multiple_of(values_together(kv_type));
        let head_bytes = match kv_type {
            KvType::F32 => 4 * stride,
            KvType::F16 => 2 * stride,
            // A scale of two bytes for each 32 values.
            KvType::Q8_0 => stride + stride / 16,
        };
        (shape.n_kv_heads * slots * head_bytes) as u64
    })
}

/// Values that one invocation stores.
pub(crate) fn values_together(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F32 | KvType::F16 => 8,
        KvType::Q8_0 => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_on_a_device_needs_the_bytes_of_its_type() {
        let bytes = |shape| [KvType::F32, KvType::F16, KvType::Q8_0].map(|kv_type| plane_block_bytes(shape, kv_type));
        assert_eq!(bytes(KvShape::grouped(2, 64)), [[8192; 2], [4096; 2], [2176; 2]]);
        let unequal = KvShape { value_dim: 128, ..KvShape::grouped(1, 192) };
        assert_eq!(bytes(unequal)[1..], [[16 * 384, 16 * 256], [16 * 204, 16 * 136]]);
        assert_eq!(bytes(KvShape::latent(576, 512))[1..], [[16 * 1152, 0], [16 * 612, 0]], "only keys");
        let pooled = KvShape::latent(512, 512).with_pools(4).unwrap();
        assert_eq!(bytes(pooled)[1..], [[16 * 1024, 4 * 1024], [16 * 544, 4 * 544]], "an entry for four positions");
    }
}
