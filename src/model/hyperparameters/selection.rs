//! How each layer selects the positions to which it attends.

use super::keys::Keys;
use super::pools::RATIOS;
use crate::model::arch::{Mixer, RopePairs};
use crate::model::error::ModelError;
use crate::model::layer::{Heads, Indexer, PositionSelection};

/// Most positions of a pool. A larger number means a damaged file.
const MOST_POOLED: usize = 64;

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
            head_dim: self.size("attention.indexer.key_length")?,
            top_k,
            pool: self.selection_pool(top_k)?,
            rope_pairs,
        };
        if let Some(heads) = heads.iter().find(|heads| heads.rotary_dim > indexer.head_dim) {
            let expected = format!("at least {} (the rotated values)", heads.rotary_dim);
            return Err(self.invalid("attention.indexer.key_length", indexer.head_dim, expected));
        }
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

    /// The indexer of each layer that attends to pools of positions; none in other families.
    pub(super) fn pool_indexers(
        &self,
        mixer: Mixer,
        (heads, rope_pairs): (&[Heads], RopePairs),
    ) -> Result<Vec<Option<Indexer>>, ModelError> {
        const KEY_LENGTH: &str = "attention.indexer.key_length";
        if mixer != Mixer::SelectiveAttention {
            return Ok(vec![None; heads.len()]);
        }
        let (n_heads, head_dim) = (self.size("attention.indexer.head_count")?, self.size(KEY_LENGTH)?);
        let top_k = self.size("attention.indexer.top_k")?;
        if let Some(heads) = heads.iter().find(|heads| heads.rotary_dim > head_dim) {
            let expected = format!("at least {} (the rotated values)", heads.rotary_dim);
            return Err(self.invalid(KEY_LENGTH, head_dim, expected));
        }
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
