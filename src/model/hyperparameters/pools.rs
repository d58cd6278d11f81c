//! The pools of positions of each layer, to whose entries rows attend.

use cuelight_shaders::attention::KvShape;
use cuelight_shaders::pool_rows::Overlap;

use super::keys::Keys;
use crate::model::arch::{Mixer, RopePairs};
use crate::model::error::ModelError;
use crate::model::layer::{EntryPools, Heads, Indexer, PooledSizes, RopeSpec};
use crate::model::rope::RopeScaling;

/// The key with the positions of a pool in each layer, 0 in layers without pools.
pub(super) const RATIOS: &str = "attention.compress_ratios";

impl Keys<'_> {
    /// The sizes of a layer's attention to one key in a window and to entries of pools.
    pub(super) fn pooled_sizes(&self, layer: usize, (heads, pool): (Heads, usize)) -> Result<PooledSizes, ModelError> {
        const GROUPS: &str = "attention.output_group_count";
        let Heads { n_heads, n_kv_heads, head_dim, value_dim, rotary_dim } = heads;
        for (key, found, expected) in
            [("attention.head_count_kv", n_kv_heads, 1), ("attention.value_length", value_dim, head_dim)]
        {
            if found != expected {
                return Err(self.invalid(key, found, expected.to_string()));
            }
        }
        let output_groups = self.size(GROUPS)?;
        if !n_heads.is_multiple_of(output_groups) {
            return Err(self.invalid(GROUPS, output_groups, format!("a divisor of {n_heads} heads")));
        }
        Ok(PooledSizes {
            query_rank: self.size("attention.q_lora_rank")?,
            output_groups,
            output_rank: self.size("attention.output_lora_rank")?,
            pools: if pool == 0 { None } else { Some(self.entry_pools(layer, (pool, head_dim, rotary_dim))?) },
        })
    }

    /// The positions of a pool with an entry in each layer; none in families without such pools.
    pub(super) fn entry_pool_lengths(&self, mixer: Mixer, n_layers: usize) -> Result<Vec<usize>, ModelError> {
        if mixer == Mixer::PooledAttention { self.pool_lengths(n_layers) } else { Ok(Vec::new()) }
    }

    /// The positions of a pool in each layer, 0 in layers without pools.
    pub(super) fn pool_lengths(&self, n_layers: usize) -> Result<Vec<usize>, ModelError> {
        self.size_or_none_of_layers(RATIOS, n_layers)?.ok_or_else(|| self.missing(RATIOS))
    }

    fn entry_pools(
        &self,
        layer: usize,
        (pool, head_dim, rotary_dim): (usize, usize, usize),
    ) -> Result<EntryPools, ModelError> {
        if KvShape::latent(head_dim, head_dim).with_pools(pool).is_err() {
            return Err(self.invalid(RATIOS, pool, "0, a divisor of 16 or a multiple of 16"));
        }
        let width = self.checkpoint.tensor(&format!("blk.{layer}.attn_compressor_kv.weight"));
        let overlap = match width.map(|tensor| tensor.n_rows()) {
            Some(rows) if rows == 2 * head_dim as u64 => Overlap::PoolBefore,
            _ => Overlap::None,
        };
        let indexer = self.has_tensor(layer, "indexer.attn_q_b.weight").then(|| self.pool_indexer(pool, rotary_dim));
        Ok(EntryPools { pool, overlap, indexer: indexer.transpose()? })
    }

    /// The indexer that selects pools.
    fn pool_indexer(&self, pool: usize, rotary_dim: usize) -> Result<Indexer, ModelError> {
        const KEY: &str = "attention.indexer.key_length";
        let head_dim = self.size(KEY)?;
        if head_dim < rotary_dim || !(head_dim - rotary_dim).is_multiple_of(2) {
            return Err(self.invalid(KEY, head_dim, format!("even and at least {rotary_dim} (the rotated values)")));
        }
        Ok(Indexer {
            n_heads: self.size("attention.indexer.head_count")?,
            head_dim,
            top_k: self.size("attention.indexer.top_k")?,
            pool,
            rope_pairs: RopePairs::Interleaved,
        })
    }

    /// The rotation of each layer: with pools by a base of their own, and without them without the scaling for long contexts. Neither
    /// changes magnitudes.
    pub(super) fn ropes_of_pools(
        &self,
        ropes: Vec<Option<RopeSpec>>,
        pools: &[usize],
    ) -> Result<Vec<Option<RopeSpec>>, ModelError> {
        let base = self.positive("attention.compress_rope_freq_base")?;
        let of_layer = |(rope, pool): (Option<RopeSpec>, &usize)| {
            let rope = RopeSpec { magnitude: 1.0, factors: None, ..rope? };
            Some(match pool {
                0 => RopeSpec { scaling: RopeScaling::None, ..rope },
                _ => RopeSpec { base, ..rope },
            })
        };
        Ok(ropes.into_iter().zip(pools).map(of_layer).collect())
    }
}
