//! Models of an encoder and a decoder, whose config has the sizes of both: those of the decoder under the usual names.

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::half_layers::LAYERS;
use super::keys::Keys;

/// What a layer of the decoder consists of. Each part is a layer of its own here.
const PARTS: [&str; 3] = ["attention", CROSS_ATTENTION, "mlp"];

/// The part that attends to the rows of the encoder.
const CROSS_ATTENTION: &str = "cross_attention";

/// The rows of the encoder, and the most tokens after them.
const ROWS: &str = "max_source_positions";
const TOKENS: &str = "max_target_positions";

/// Most layers of a decoder.
const MOST_LAYERS: u32 = 1 << 10;

/// Adds the layers of a decoder that attends to a fixed number of rows of an encoder. Its sequences start with these.
///
/// # Errors
/// [`HuggingFaceError`] when a size is not one.
pub(super) fn describe(config: &mut Config) -> Result<(), HuggingFaceError> {
    const DECODER_LAYERS: &str = "decoder_layers";
    let sizes = [config.u32(DECODER_LAYERS)?, config.u32(ROWS)?, config.u32(TOKENS)?];
    let [Some(layers), Some(rows), Some(tokens)] = sizes else { return Ok(()) };
    if !config.is_set("is_encoder_decoder") {
        return Ok(());
    }
    if layers > MOST_LAYERS {
        return Err(config.wrong(DECODER_LAYERS, layers, format!("at most {MOST_LAYERS}")));
    }
    config.set(LAYERS, PARTS.repeat(layers as usize).into());
    config.set("max_position_embeddings", rows.saturating_add(tokens).into());
    Ok(())
}

/// Adds the heads that attend to the encoder where a token is spoken: `alignment_heads` of `generation_config.json`, pairs of a
/// layer of the decoder and a head.
///
/// # Errors
/// [`HuggingFaceError`] when a layer or head is not a number.
pub(super) fn add_alignment_heads(keys: &mut Keys<'_>, generation: &Json) -> Result<(), HuggingFaceError> {
    const KEY: &str = "alignment_heads";
    let config = keys.config;
    let Some(stated) = generation.get(KEY).filter(|stated| !stated.is_null()) else { return Ok(()) };
    let pair = |pair: &Json| -> Result<[u32; 2], HuggingFaceError> {
        let [layer, head] = pair.as_array().map_or(&[][..], Vec::as_slice) else {
            return Err(config.wrong(KEY, pair, "pairs of a layer and a head"));
        };
        let (layer, head) = (config.as_u32(KEY, layer)?, config.as_u32(KEY, head)?);
        Ok([layer.saturating_mul(PARTS.len() as u32).saturating_add(1), head])
    };
    let stated = stated.as_array().ok_or_else(|| config.wrong(KEY, stated, "a list"))?;
    let pairs = stated.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    keys.add("attention.alignment_heads", pairs.as_flattened());
    Ok(())
}

impl Keys<'_> {
    /// The rows of the encoder, and the layers that attend to them.
    pub(super) fn cross_attention(&mut self) -> Result<(), HuggingFaceError> {
        let layers = self.config.list(LAYERS)?.into_iter().flatten();
        let are_cross: Vec<bool> = layers.map(|name| *name == CROSS_ATTENTION).collect();
        if are_cross.contains(&true) {
            let rows = u32::try_from(self.config.size(ROWS)?).unwrap_or(u32::MAX);
            self.add("attention.encoder_rows", rows);
            self.add("attention.cross_attention", &are_cross[..]);
        }
        Ok(())
    }
}
