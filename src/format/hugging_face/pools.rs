//! The keys of attention to entries of pools of positions.

use serde_json::Value as Json;

use super::config::POOLED;
use super::error::HuggingFaceError;
use super::keys::Keys;

/// The base of the rotation in layers with pools. Only models with such layers have it.
const BASE: &str = "compress_rope_theta";

impl Keys<'_> {
    /// The pools of each layer, and the sizes of the projections that only models with pools have.
    pub(super) fn pools(&mut self) -> Result<(), HuggingFaceError> {
        if self.config.get(BASE).is_none() {
            return Ok(());
        }
        let lengths = self.pool_lengths()?;
        self.add("attention.compress_ratios", &lengths[..]);
        if let Some(base) = self.config.f32(BASE)? {
            self.add("attention.compress_rope_freq_base", base);
        }
        for (name, key) in [
            ("q_lora_rank", "attention.q_lora_rank"),
            ("o_groups", "attention.output_group_count"),
            ("o_lora_rank", "attention.output_lora_rank"),
        ] {
            let size = u32::try_from(self.config.size(name)?).unwrap_or(u32::MAX);
            self.add(key, size);
        }
        if let Some(rotated) = self.config.u32("qk_rope_head_dim")? {
            self.add("rope.dimension_count", rotated);
        }
        self.routed_by_token()
    }

    /// The positions of a pool in each layer, 0 in layers without pools: listed, or those of the kind of each layer.
    fn pool_lengths(&self) -> Result<Vec<u32>, HuggingFaceError> {
        const KEY: &str = "compress_ratios";
        let n_layers = self.layers()?;
        if let Some(list) = self.config.list(KEY)? {
            if list.len() < n_layers {
                return Err(self.config.wrong(KEY, list.len(), format!("one number for each of {n_layers} layers")));
            }
            // The list goes on with the layers that predict more tokens. A pool of one position is none.
            let length = |value| self.config.as_u32(KEY, value).map(|length| if length == 1 { 0 } else { length });
            return list[..n_layers].iter().map(length).collect();
        }
        let kinds = self.config.layer_types()?.ok_or_else(|| self.config.missing(KEY))?;
        let of_kinds = self.config.get("compress_rates");
        let of_kind = |kind: &&str| match of_kinds.and_then(|rates| rates.get(kind)) {
            Some(length) => self.config.as_u32("compress_rates", length),
            None if POOLED.contains(kind) => Err(self.config.missing(&format!("compress_rates.{kind}"))),
            None => Ok(0),
        };
        kinds.iter().map(of_kind).collect()
    }

    /// How many of the first layers have the experts of a token in a table. Other loaders need the number.
    fn routed_by_token(&mut self) -> Result<(), HuggingFaceError> {
        let by_token = |kinds: &Vec<Json>| kinds.iter().filter(|kind| **kind == "hash_moe").count();
        let listed = self.config.list("mlp_layer_types")?.map(by_token);
        let count = self.config.u32("num_hash_layers")?;
        let count = count.or(listed.and_then(|count| u32::try_from(count).ok())).unwrap_or(0);
        self.add("hash_layer_count", count);
        Ok(())
    }
}
