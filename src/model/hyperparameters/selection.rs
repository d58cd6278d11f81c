//! How each layer selects the positions to which it attends.

use super::keys::Keys;
use crate::model::arch::Mixer;
use crate::model::error::ModelError;
use crate::model::layer::{Heads, Indexer, PositionSelection};

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
        let indexer = Indexer {
            n_heads: self.size("attention.indexer.head_count")?,
            head_dim: self.size("attention.indexer.key_length")?,
            top_k: self.size("attention.indexer.top_k")?,
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
        if has_indexer.first() == Some(&false) {
            return Err(self.invalid(TYPES, "no indexer in the first layer", "one"));
        }
        let selection = |has_indexer: bool| match has_indexer {
            true => PositionSelection::Own(indexer),
            false => PositionSelection::OfEarlierLayer,
        };
        Ok(has_indexer.into_iter().map(|has_indexer| Some(selection(has_indexer))).collect())
    }
}
