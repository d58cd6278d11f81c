//! Models whose layers have only a mixer or only a feed-forward, which the config lists.

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::families::HAS_EXPERTS;
use super::keys::Keys;

/// The list of what each layer consists of.
pub(super) const LAYERS: &str = "layers_block_type";

/// What a layer consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Recurrent,
    Attention,
    Dense,
    Experts,
}

/// The names of each half: a letter in older configs, words in newer ones.
const NAMES: [(&[&str], Half); 4] = [
    (&["M", "mamba", "linear_attention"], Half::Recurrent),
    (&["*", "attention", "full_attention", "cross_attention"], Half::Attention),
    (&["-", "mlp"], Half::Dense),
    (&["E", "moe"], Half::Experts),
];

/// Adds what follows from the list of layers: their number, and whether some have experts.
pub(super) fn describe(config: &mut Config) {
    let Some(halves) = names(config).map(|names| names.iter().map(|name| half(name)).collect::<Vec<_>>()) else {
        return;
    };
    config.set("num_hidden_layers", halves.len().into());
    config.set(HAS_EXPERTS, halves.contains(&Some(Half::Experts)).into());
}

fn half(name: &str) -> Option<Half> {
    NAMES.iter().find(|(names, _)| names.contains(&name)).map(|(_, half)| *half)
}

/// What the config calls each layer.
fn names(config: &Config) -> Option<Vec<String>> {
    if let Some(list) = config.get(LAYERS).and_then(Json::as_array) {
        return Some(list.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect());
    }
    let pattern = config.get("hybrid_override_pattern")?.as_str()?;
    Some(pattern.chars().map(String::from).collect())
}

impl Keys<'_> {
    /// The heads of keys and the width of the feed-forward of each layer: 0 where it has none. Nothing for models whose layers
    /// have both halves.
    pub(super) fn half_layers(&mut self) -> Result<(), HuggingFaceError> {
        let Some(names) = names(self.config) else { return Ok(()) };
        let size = |key: &str| self.config.size(key).map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let sizes = |name: &String| match half(name) {
            Some(Half::Recurrent) => Ok([0, 0]),
            Some(Half::Attention) => Ok([size("num_key_value_heads")?, 0]),
            Some(Half::Dense) => Ok([0, size("intermediate_size")?]),
            Some(Half::Experts) => Ok([0, size("moe_intermediate_size")?]),
            None => Err(self.config.wrong(LAYERS, name, "mamba, attention, mlp or moe for each layer")),
        };
        let sizes = names.iter().map(sizes).collect::<Result<Vec<_>, _>>()?;
        let [kv_heads, widths] = [0, 1].map(|of| sizes.iter().map(|sizes| sizes[of]).collect::<Vec<u32>>());
        self.replace("attention.head_count_kv", &kv_heads[..]);
        self.replace("feed_forward_length", &widths[..]);
        Ok(())
    }
}
