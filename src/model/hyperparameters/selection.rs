//! How each layer selects the positions to which it attends.

use super::keys::Keys;
use super::pools::RATIOS;
use crate::model::arch::{Mixer, RopePairs};
use crate::model::error::ModelError;
use crate::model::layer::{GroupIndexer, HeadIndexer, Heads, Indexer, PositionSelection};

/// The values in a head of queries of an indexer, and in its key.
const KEY_LENGTH: &str = "attention.indexer.key_length";

/// Most positions of a pool. A larger number means a damaged file.
const MOST_POOLED: usize = 64;

/// Most positions that a row selects. A larger number means a damaged file.
const MOST_SELECTED: usize = 1 << 24;

/// The key with which layers have an indexer.
const TYPES: &str = "attention.indexer.types";

impl Keys<'_> {
    /// The selection of each layer; `None` in families without one. A file says which layers have an indexer, or has its
    /// tensors only for those.
    pub(super) fn position_selections(
        &self,
        mixer: Mixer,
        heads: &[Heads],
    ) -> Result<Vec<Option<PositionSelection>>, ModelError> {
        let Mixer::SelectiveLatentAttention(rope_pairs) = mixer else { return Ok(vec![None; heads.len()]) };
        let top_k = self.size("attention.indexer.top_k")?;
        let indexer = Indexer {
            n_heads: self.size("attention.indexer.head_count")?,
            head_dim: self.size(KEY_LENGTH)?,
            top_k,
            pool: self.selection_pool(top_k)?,
            rope_pairs,
        };
        heads.iter().try_for_each(|heads| self.check_rotated(heads, indexer.head_dim))?;
        let has_tensors = |layer: usize| self.has_tensor(layer, "indexer.attn_k.weight");
        // A layer alone, such as one for multi-token prediction, has no earlier one. Files may have no indexer for it.
        if heads.len() == 1 {
            return Ok(vec![has_tensors(0).then_some(PositionSelection::Own(indexer))]);
        }
        let has_indexer = match self.checkpoint.value(&self.name(TYPES)) {
            Some(_) => self.bool_of_layers(TYPES, heads.len())?,
            None => (0..heads.len()).map(has_tensors).collect(),
        };
        let mut attending = has_indexer.iter().zip(heads).filter(|(_, heads)| heads.n_kv_heads > 0);
        if attending.next().is_some_and(|(has_indexer, _)| !has_indexer) {
            return Err(self.invalid(TYPES, "no indexer in the first layer", "one"));
        }
        let selection = |has_indexer: bool| match has_indexer {
            true => PositionSelection::Own(indexer),
            false => PositionSelection::OfEarlierLayer,
        };
        Ok(has_indexer.into_iter().map(|has_indexer| Some(selection(has_indexer))).collect())
    }

    /// The indexer of each layer whose groups of heads attend to pools of positions; none in other families.
    pub(super) fn group_indexers(
        &self,
        mixer: Mixer,
        (heads, rope_pairs): (&[Heads], RopePairs),
    ) -> Result<Vec<Option<GroupIndexer>>, ModelError> {
        match mixer {
            Mixer::SelectiveAttention => {
                let of_layers = self.pool_indexers((heads, rope_pairs))?;
                Ok(of_layers.into_iter().map(|indexer| indexer.map(GroupIndexer::Shared)).collect())
            }
            Mixer::SelectiveAttentionOfGroups => {
                let of_layer = |(layer, heads): (usize, &Heads)| {
                    let indexer = self.has_tensor(layer, "indexer.q_proj.weight").then(|| self.head_indexer(heads));
                    indexer.transpose().map(|indexer| indexer.map(GroupIndexer::OfEach))
                };
                heads.iter().enumerate().map(of_layer).collect()
            }
            _ => Ok(vec![None; heads.len()]),
        }
    }

    /// The indexer of each layer that attends to pools of positions.
    fn pool_indexers(&self, (heads, rope_pairs): (&[Heads], RopePairs)) -> Result<Vec<Option<Indexer>>, ModelError> {
        let (n_heads, head_dim) = (self.size("attention.indexer.head_count")?, self.size(KEY_LENGTH)?);
        let top_k = self.size("attention.indexer.top_k")?;
        heads.iter().try_for_each(|heads| self.check_rotated(heads, head_dim))?;
        let indexer = |(layer, pool): (usize, usize)| match pool {
            0 if self.has_tensor(layer, "indexer.q_proj.weight") => {
                Err(self.invalid(RATIOS, 0, format!("above 0 for layer {layer}, which has an indexer")))
            }
            0 => Ok(None),
            pool if !top_k.is_multiple_of(pool) || pool > MOST_POOLED => {
                let expected = format!("a divisor of {top_k} (attention.indexer.top_k), at most {MOST_POOLED}");
                Err(self.invalid(RATIOS, pool, expected))
            }
            pool => Ok(Some(Indexer { n_heads, head_dim, top_k, pool, rope_pairs })),
        };
        self.pool_lengths(heads.len())?.into_iter().enumerate().map(indexer).collect()
    }

    /// The indexer of a layer that selects pools of positions for each head of keys.
    fn head_indexer(&self, heads: &Heads) -> Result<HeadIndexer, ModelError> {
        const HEADS: &str = "attention.indexer.head_count";
        const POOL: &str = "attention.indexer.block_size";
        const LAST: &str = "attention.indexer.local_blocks";
        let n_heads = self.size(HEADS)?;
        if n_heads != heads.n_kv_heads {
            return Err(self.invalid(HEADS, n_heads, format!("{} (the heads of keys)", heads.n_kv_heads)));
        }
        let head_dim = self.size(KEY_LENGTH)?;
        self.check_rotated(heads, head_dim)?;
        let (top_k, pool, last) = (self.size("attention.indexer.top_k")?, self.size(POOL)?, self.size(LAST)?);
        if top_k * pool > MOST_SELECTED {
            return Err(self.invalid(POOL, pool, format!("at most {}", MOST_SELECTED / top_k)));
        }
        if last > top_k {
            return Err(self.invalid(LAST, last, format!("at most {top_k} (the selected blocks)")));
        }
        Ok(HeadIndexer { head_dim, top_k, pool, last })
    }

    /// Refuses heads of an indexer, of `head_dim` values, that have fewer than are rotated.
    fn check_rotated(&self, heads: &Heads, head_dim: usize) -> Result<(), ModelError> {
        if heads.rotary_dim <= head_dim {
            return Ok(());
        }
        let expected = format!("at least {} (the rotated values)", heads.rotary_dim);
        Err(self.invalid(KEY_LENGTH, head_dim, expected))
    }

    /// Adjacent positions that are selected together.
    fn selection_pool(&self, top_k: usize) -> Result<usize, ModelError> {
        const POOL: &str = "attention.indexer.kpool";
        const TAIL: &str = "attention.indexer.kpool_select_tail";
        let pool = self.optional_size(POOL)?.unwrap_or(1);
        if !top_k.is_multiple_of(pool) || pool > MOST_POOLED {
            return Err(self.invalid(POOL, pool, format!("a divisor of {top_k}, at most {MOST_POOLED}")));
        }
        // Rows would not see themselves.
        if pool > 1 && self.checkpoint.optional_bool(&self.name(TAIL))? == Some(false) {
            return Err(self.invalid(TAIL, "false", "true"));
        }
        Ok(pool)
    }
}
