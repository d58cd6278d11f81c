//! Lists of configs with a value for each layer, and sizes that layers of one kind have of their own.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::config::{Config, FULL, RECURRENT, WINDOWED};
use super::error::HuggingFaceError;
use super::family::Family;
use super::keys::Keys;

/// The kind of layers, the usual key of a size, and the key of their own size.
const OWN_SIZES: &[(&str, &str, &str)] = &[
    (FULL, "num_key_value_heads", "num_global_key_value_heads"),
    (FULL, "head_dim", "global_head_dim"),
    (WINDOWED, "num_attention_heads", "swa_num_attention_heads"),
    (WINDOWED, "num_key_value_heads", "swa_num_key_value_heads"),
    (WINDOWED, "head_dim", "swa_head_dim"),
    (WINDOWED, "v_head_dim", "swa_v_head_dim"),
];

/// Most layers of which a list is made. A larger number means a damaged config.
const MOST_LAYERS: u32 = 1 << 16;

/// The keys of lists for the rotation of each layer, and the keys of the same values for a kind of layers.
const ROTATION: [(&str, &str); 2] = [("rope_theta", "rope_theta"), ("partial_rotary_factors", "partial_rotary_factor")];

/// Gives a config the usual lists and objects: the kind of each layer, and the rotation of each kind. Lists may go on with layers
/// that predict more tokens.
pub(super) fn describe(config: &mut Config) -> Result<(), HuggingFaceError> {
    if let Some(pattern) = config.list("hybrid_layer_pattern")? {
        let kind = |value: &Json| if value.as_u64() == Some(1) { WINDOWED } else { FULL };
        let kinds: Vec<&str> = pattern.iter().map(kind).collect();
        config.set("layer_types", kinds.into());
    }
    add_groups(config)?;
    add_numbered(config)?;
    add_blocks(config)?;
    let Some(kinds) = config.list("layer_types")? else { return Ok(()) };
    let n_layers = config.u32("num_hidden_layers")?.unwrap_or(u32::MAX) as usize;
    let kinds: Vec<Json> = kinds.iter().take(n_layers).cloned().collect();
    let rotations = rotations(config, &kinds);
    config.set("layer_types", kinds.into());
    if let Some(rotations) = rotations {
        config.set("rope_theta", Json::Null);
        config.set("rope_parameters", rotations.into());
    }
    Ok(())
}

/// Adds the kind of each layer to a config that states how many layers a group has: its last one attends, as do layers after the
/// last whole group.
fn add_groups(config: &mut Config) -> Result<(), HuggingFaceError> {
    let (Some(group), None) = (config.u32("layer_group_size")?, config.get("layer_types")) else { return Ok(()) };
    let layers = config.u32("num_hidden_layers")?.unwrap_or(0).min(MOST_LAYERS);
    let (group, whole) = (group.max(1), layers / group.max(1) * group.max(1));
    let attends = |layer: u32| (layer + 1).is_multiple_of(group) || layer >= whole;
    let kinds: Vec<&str> = (0..layers).map(|layer| if attends(layer) { FULL } else { RECURRENT[0] }).collect();
    config.set("layer_types", kinds.into());
    Ok(())
}

/// Adds the kind of each layer to a config that lists those that attend, which are counted from 1.
fn add_numbered(config: &mut Config) -> Result<(), HuggingFaceError> {
    let (Some(attending), None) = (config.list("full_attn_layers")?, config.get("layer_types")) else { return Ok(()) };
    let attending: HashSet<u64> = attending.iter().filter_map(Json::as_u64).collect();
    let layers = u64::from(config.u32("num_hidden_layers")?.unwrap_or(0).min(MOST_LAYERS));
    let kinds: Vec<&str> =
        (1..=layers).map(|layer| if attending.contains(&layer) { FULL } else { RECURRENT[0] }).collect();
    config.set("layer_types", kinds.into());
    Ok(())
}

/// Adds the sizes of each layer to a config that lists them by how many query heads share one of keys, and by how much wider
/// feed-forwards are than usual.
fn add_blocks(config: &mut Config) -> Result<(), HuggingFaceError> {
    const KEY: &str = "block_configs";
    let Some(blocks) = config.list(KEY)?.cloned() else { return Ok(()) };
    let [heads, hidden] = ["num_attention_heads", "hidden_size"].map(|key| config.u32(key));
    let (Some(heads), Some(hidden)) = (heads?, hidden?) else { return Ok(()) };
    let mut sizes = Map::new();
    let mut widths = Vec::new();
    for (layer, block) in blocks.iter().enumerate() {
        let (attention, feed_forward) = (&block["attention"], &block["ffn"]);
        if feed_forward["replace_with_linear"] == true {
            return Err(config.wrong(&format!("{KEY}.{layer}.ffn.replace_with_linear"), true, "false"));
        }
        let shared = attention["n_heads_in_group"].as_u64().filter(|shared| *shared > 0);
        let kv_heads = shared.map_or(0, |shared| u64::from(heads) / shared);
        let attends = shared.is_some() || attention["replace_with_linear"] == true;
        let query_heads = if attends { heads } else { 0 };
        let own = json!({ "num_attention_heads": query_heads, "num_key_value_heads": kv_heads });
        sizes.insert(layer.to_string(), own);
        widths.push(feed_forward["ffn_mult"].as_f64().map_or(0, |factor| wider(hidden, factor)));
    }
    config.set("layer_types", vec![FULL; blocks.len()].into());
    config.set("per_layer_config", sizes.into());
    let are_equal = widths.windows(2).all(|pair| pair[0] == pair[1]);
    config.set("intermediate_size", if are_equal { widths.first().copied().into() } else { widths.into() });
    Ok(())
}

/// The width of a feed-forward that is this factor wider than the model, as for one without a gate.
fn wider(hidden: u32, factor: f64) -> u64 {
    const MULTIPLE: u64 = 256;
    let width = (2.0 * factor * f64::from(hidden) / 3.0).min(f64::from(u32::MAX)) as u64;
    width.next_multiple_of(MULTIPLE)
}

/// Whether each layer is recurrent, where the config lists their kinds.
pub(super) fn recurrent_layers(config: &Config) -> Result<Vec<bool>, HuggingFaceError> {
    let kinds = config.layer_types()?.unwrap_or_default();
    Ok(kinds.iter().map(|kind| RECURRENT.contains(kind)).collect())
}

/// The rotation of each kind of layers, from lists with that of each layer; `None` if the config has no such lists. What scales
/// frequencies is for layers without a window.
fn rotations(config: &Config, kinds: &[Json]) -> Option<Map<String, Json>> {
    let lists = ROTATION.map(|(name, key)| (config.get(name).and_then(Json::as_array), key));
    if lists.iter().all(|(list, _)| list.is_none()) {
        return None;
    }
    let mut rotations = Map::new();
    for kind in [FULL, WINDOWED] {
        let Some(first) = kinds.iter().position(|of_layer| *of_layer == kind) else { continue };
        let scaling = config.get("rope_scaling").and_then(Json::as_object).filter(|_| kind == FULL);
        let mut values = scaling.cloned().unwrap_or_default();
        for (list, key) in &lists {
            if let Some(value) = list.and_then(|list| list.get(first)) {
                values.insert((*key).to_owned(), value.clone());
            }
        }
        rotations.insert(kind.to_owned(), values.into());
    }
    Some(rotations)
}

impl Keys<'_> {
    /// A size of a layer: that of the layer, else that of its kind, else that of all.
    fn size_of_layer(&self, layer: usize, kind: &str, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        let own = self.config.get("per_layer_config").and_then(|layers| layers.get(layer.to_string()));
        if let Some(value) = own.and_then(|own| own.get(key)) {
            return self.config.as_u32(key, value).map(Some);
        }
        let of_kind = OWN_SIZES.iter().find(|(of, usual, _)| *of == kind && *usual == key);
        let of_kind = of_kind.map_or(Ok(None), |(_, _, name)| self.config.u32(name))?;
        Ok(of_kind.or(self.config.u32(key)?))
    }

    /// The heads of keys of each layer, 0 in recurrent layers, for families whose files list them. This many layers that predict more
    /// tokens follow, which attend.
    pub(super) fn recurrent_heads(&mut self, family: &Family, predicting: usize) -> Result<(), HuggingFaceError> {
        let Some(kinds) = self.config.layer_types()?.filter(|_| family.lists_recurrent_heads) else { return Ok(()) };
        let is_latent = self.config.get("kv_lora_rank").is_some();
        let heads = if is_latent { Some(1) } else { self.config.u32("num_key_value_heads")? };
        if let Some(heads) = heads {
            let of_kind = |kind: &&str| if RECURRENT.contains(kind) { 0 } else { heads };
            let of_more = std::iter::repeat_n(heads, predicting);
            let heads: Vec<u32> = kinds.iter().map(of_kind).chain(of_more).collect();
            self.replace("attention.head_count_kv", &heads[..]);
        }
        Ok(())
    }

    /// A size of the layers of a kind; that of all layers where the config lists none of the kind.
    pub(super) fn size_of_kind(&self, kind: &str, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        let kinds = self.config.layer_types()?.unwrap_or_default();
        match kinds.iter().position(|of_layer| *of_layer == kind) {
            Some(first) => self.size_of_layer(first, kind, key),
            None => self.config.u32(key),
        }
    }

    /// Sets a key to a size: to a list where the sizes of layers differ. Nothing for a size that the config does not have.
    pub(super) fn sizes_of_layers(&mut self, name: &str, key: &str) -> Result<(), HuggingFaceError> {
        let kinds = self.config.layer_types()?.unwrap_or_default();
        let of_layer = |(layer, kind): (usize, &&str)| self.size_of_layer(layer, kind, name);
        let sizes: Option<Vec<u32>> = kinds.iter().enumerate().map(of_layer).collect::<Result<_, _>>()?;
        match (sizes.unwrap_or_default().as_slice(), self.config.u32(name)?) {
            ([first, rest @ ..], _) if rest.iter().all(|size| size == first) => self.replace(key, *first),
            (sizes @ [_, ..], _) => self.replace(key, sizes),
            ([], Some(size)) => self.replace(key, size),
            ([], None) => {}
        }
        Ok(())
    }
}
