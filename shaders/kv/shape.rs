//! How keys and values are stored, and the shape of a layer's keys and values.

use half::f16;

use crate::op::ShapeError;
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
    /// Adjacent positions of a pool, of which one entry, as long as a key, is stored in the place of values; 0 without pools.
    pub pool: usize,
    /// Whether rows read the positions of a window only, so that the layer may have fewer blocks than sequences have
    /// ([`BlockCounts`]).
    pub is_windowed: bool,
}

/// The numbers of blocks of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCounts {
    /// Of a layer that keeps all positions of the sequences.
    pub all: usize,
    /// Of a layer that keeps those of windows.
    pub windowed: usize,
}

impl BlockCounts {
    /// As many blocks in every layer.
    #[must_use]
    pub fn equal(blocks: usize) -> Self {
        BlockCounts { all: blocks, windowed: blocks }
    }

    /// The blocks of a layer of this shape.
    #[must_use]
    pub fn of(self, shape: KvShape) -> usize {
        if shape.is_windowed { self.windowed } else { self.all }
    }
}

impl KvShape {
    /// Nothing is stored.
    pub const NONE: KvShape =
        KvShape { n_kv_heads: 0, key_dim: 0, value_dim: 0, values_in_keys: false, pool: 0, is_windowed: false };

    /// Keys without values of their own, by which positions are selected.
    #[must_use]
    pub fn index(key_dim: usize) -> Self {
        KvShape::latent(key_dim, key_dim)
    }

    /// Heads whose keys and values have the same length.
    #[must_use]
    pub fn grouped(n_kv_heads: usize, head_dim: usize) -> Self {
        KvShape { n_kv_heads, key_dim: head_dim, value_dim: head_dim, ..KvShape::NONE }
    }

    /// Latent attention: one head for all queries. Its key is a latent vector of `value_dim` values, which is also the
    /// value, followed by the rotated values.
    #[must_use]
    pub fn latent(key_dim: usize, value_dim: usize) -> Self {
        KvShape { n_kv_heads: 1, key_dim, value_dim, values_in_keys: true, ..KvShape::NONE }
    }

    /// The same with an entry for each pool of this many positions, which divides a block or has whole blocks.
    ///
    /// # Errors
    /// [`ShapeError`] when it is neither, or values are not whole keys of one head.
    pub fn with_pools(self, pool: usize) -> Result<Self, ShapeError> {
        let fits = pool > 0 && (BLOCK_TOKENS.is_multiple_of(pool) || pool.is_multiple_of(BLOCK_TOKENS));
        if !fits {
            let expected = format!("a divisor or a multiple of {BLOCK_TOKENS}");
            return Err(ShapeError::Mismatch { op: "kv", what: "positions of a pool".into(), found: pool, expected });
        }
        ShapeError::check("kv", "length of a value", self.value_dim, self.key_dim)?;
        ShapeError::check("kv", "heads with values in keys", self.n_kv_heads * usize::from(self.values_in_keys), 1)?;
        Ok(KvShape { pool, ..self })
    }

    /// The same, if rows read the positions of a window only.
    #[must_use]
    pub fn windowed(self, is_windowed: bool) -> Self {
        KvShape { is_windowed, ..self }
    }

    /// The slots of a block for values, or for the entries of pools.
    #[must_use]
    pub(crate) fn value_slots(&self) -> usize {
        BLOCK_TOKENS.checked_div(self.pool).map_or(BLOCK_TOKENS, |slots| slots.max(1))
    }

    /// The slot of the value of a position, or of the entry of its pool if it is the last of the pool.
    #[must_use]
    pub(crate) fn value_slot(&self, slot: usize) -> usize {
        slot / (BLOCK_TOKENS / self.value_slots())
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

    /// Values of a head, or of an entry of a pool, that are stored next to its key.
    #[must_use]
    pub fn stored_value_dim(&self) -> usize {
        match (self.pool, self.values_in_keys) {
            (0, true) => 0,
            (0, false) => self.value_dim,
            (_, _) => self.key_dim,
        }
    }

    /// Lengths of a stored key and of a stored value: rounded up to whole vectors.
    pub(super) fn strides(&self) -> [usize; 2] {
        [self.key_dim, self.stored_value_dim()].map(|dim| dim.next_multiple_of(LANES))
    }

    /// Bytes of one block of this layer, keys and values together.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        let [key, value] = self.strides().map(|stride| kv_type.bytes(stride));
        (self.n_kv_heads * (BLOCK_TOKENS * key + self.value_slots() * value)) as u64
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
    fn a_block_has_an_entry_of_each_pool_or_one_of_a_longer_pool() {
        let bytes = |pool| KvShape::latent(512, 512).with_pools(pool).map(|shape| shape.block_bytes(KvType::F16));
        assert_eq!([4, 16, 128].map(|pool| bytes(pool).unwrap()), [20, 17, 17].map(|slots| slots * 1024));
        let slot = |pool, slot| KvShape::latent(512, 512).with_pools(pool).unwrap().value_slot(slot);
        assert_eq!([slot(4, 3), slot(4, 15), slot(16, 15), slot(128, 15)], [0, 3, 0, 0]);
        let error = bytes(6).unwrap_err().to_string();
        assert_eq!(error, "kv: positions of a pool is 6, but must be a divisor or a multiple of 16");
        KvShape::latent(576, 512).with_pools(4).unwrap_err();
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
