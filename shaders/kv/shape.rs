//! How keys and values are stored, and the shape of a layer's keys and values.

use half::f16;

use crate::vector::LANES;

/// Positions in a block, which are the lanes of one vector.
pub const BLOCK_TOKENS: usize = LANES;

/// The longest key that the kernels have memory for: 512 latent values and 64 rotated ones.
pub const MAX_HEAD_DIM: usize = 576;

/// Values that share a scale in [`KvType::Q8_0`].
pub(crate) const SCALE_GROUP: usize = 32;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// Eight bits, with one half-precision scale for each 32 values of a head.
    Q8_0,
}

impl KvType {
    /// Every type.
    pub const ALL: &[KvType] = &[KvType::F16, KvType::F32, KvType::Q8_0];

    /// The name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// Bytes of `values` values of one head at one position.
    pub(super) fn bytes(self, values: usize) -> usize {
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

/// A name that is not that of a [`KvType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {name:?}; known types: {known}")]
pub struct UnknownKvType {
    name: String,
    known: String,
}

impl std::str::FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(name: &str) -> Result<Self, UnknownKvType> {
        KvType::ALL.iter().copied().find(|kv_type| kv_type.name() == name).ok_or_else(|| {
            let known: Vec<_> = KvType::ALL.iter().map(|kv_type| kv_type.name()).collect();
            UnknownKvType { name: name.to_owned(), known: known.join(", ") }
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
    /// Nothing is stored.
    pub const NONE: KvShape = KvShape { n_kv_heads: 0, key_dim: 0, value_dim: 0, values_in_keys: false };

    /// Keys without values of their own, by which positions are selected.
    #[must_use]
    pub fn index(key_dim: usize) -> Self {
        KvShape::latent(key_dim, key_dim)
    }

    /// Heads whose keys and values have the same length.
    #[must_use]
    pub fn grouped(n_kv_heads: usize, head_dim: usize) -> Self {
        KvShape { n_kv_heads, key_dim: head_dim, value_dim: head_dim, values_in_keys: false }
    }

    /// Latent attention: one head for all queries. Its key is a latent vector of `value_dim` values, which is also the
    /// value, followed by the rotated values.
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

    /// How many of these are stored: none where they are part of the keys.
    #[must_use]
    pub fn stored_value_width(&self) -> usize {
        self.n_kv_heads * self.stored_value_dim()
    }

    /// Values of a head that are stored next to its key.
    #[must_use]
    pub fn stored_value_dim(&self) -> usize {
        if self.values_in_keys { 0 } else { self.value_dim }
    }

    /// Lengths of a stored key and of a stored value: rounded up to whole vectors.
    pub(super) fn strides(&self) -> [usize; 2] {
        [self.key_dim, self.stored_value_dim()].map(|dim| dim.next_multiple_of(LANES))
    }

    /// Bytes of one block of this layer, keys and values together.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        let of_position: usize = self.strides().iter().map(|stride| kv_type.bytes(*stride)).sum();
        (BLOCK_TOKENS * self.n_kv_heads * of_position) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_needs_the_bytes_of_its_type() {
        let bytes = |shape: KvShape| [KvType::F32, KvType::F16, KvType::Q8_0].map(|kv_type| shape.block_bytes(kv_type));
        assert_eq!(bytes(KvShape::grouped(2, 64)), [16384, 8192, 4352]);
        let unequal = KvShape { value_dim: 128, ..KvShape::grouped(1, 192) };
        assert_eq!(bytes(unequal), [16 * 320 * 4, 16 * 320 * 2, 16 * (320 + 10 * 2)]);
        // Only keys are stored.
        assert_eq!(bytes(KvShape::latent(576, 512)), [16 * 576 * 4, 16 * 576 * 2, 16 * (576 + 18 * 2)]);
    }

    #[test]
    fn a_type_is_parsed_from_its_name() {
        for &kv_type in KvType::ALL {
            assert_eq!(kv_type.name().parse(), Ok(kv_type));
        }
        let error = "q9".parse::<KvType>().unwrap_err().to_string();
        assert_eq!(error, "unknown type \"q9\"; known types: f16, f32, q8_0");
    }

    #[test]
    fn shaders_have_blocks_of_the_same_size() {
        let shader = include_str!("../attention/cache.glsl");
        assert!(shader.contains(&format!("const uint BLOCK_TOKENS = {BLOCK_TOKENS};")));
    }
}
