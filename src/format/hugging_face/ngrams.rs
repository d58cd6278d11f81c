//! The keys of models with embeddings of n-grams, whose layers of attention select pools of positions.

use serde_json::Value as Json;

use super::config::RECURRENT;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::keys::Keys;
use crate::format::safetensors::Safetensors;

/// The key of the positions of a pool. Only these models have it.
const POOL: &str = "indexer_compress_ratio";

/// The key of the layers that add embeddings of n-grams, counted from 1.
const LAYERS: &str = "ple_layer_ids";

/// The key of the token at which n-grams end.
const END: &str = "eos_token_id";

/// The ends of the names of tensors of integers with what selects rows of the table, and their keys.
pub(super) const HASH: [(&str, &str); 3] = [
    (".ple_embedding.layer_multipliers", "ple.layer_multipliers"),
    (".ple_embedding.ngram_heads_offsets", "ple.head_offsets"),
    (".ple_embedding.ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
];

/// Adds the keys of pools and of n-grams, if the model has these.
pub(super) fn add_keys(keys: &mut Keys<'_>, files: &Safetensors) -> Result<(), HuggingFaceError> {
    let config = keys.config;
    if let Some(pool) = config.u32(POOL)? {
        // Without the key, the gate is SiLU.
        match config.str("output_gate_type")? {
            Some("sigmoid") => {}
            other => return Err(config.wrong("output_gate_type", other.unwrap_or("missing"), "\"sigmoid\"")),
        }
        let kinds = config.layer_types()?.ok_or_else(|| config.missing("layer_types"))?;
        let of_kind = |kind: &&str| if RECURRENT.contains(kind) { 0 } else { pool };
        let pools: Vec<u32> = kinds.iter().map(of_kind).collect();
        keys.add("attention.compress_ratios", &pools[..]);
    }
    let Some(layers) = config.list(LAYERS)?.filter(|layers| !layers.is_empty()) else { return Ok(()) };
    let layer = |number: &Json| match config.as_u32(LAYERS, number)? {
        0 => Err(config.wrong(LAYERS, 0, "the numbers of layers, from 1 on")),
        number => Ok(number - 1),
    };
    let layers: Vec<u32> = layers.iter().map(layer).collect::<Result<_, _>>()?;
    keys.add("ple.layers", &layers[..]);
    // Of several such tokens, the first.
    let end = config.get(END).map(|end| end.get(0).unwrap_or(end)).ok_or_else(|| config.missing(END))?;
    keys.add("ple.eos_token_id", config.as_u32(END, end)?);
    let heads = config.size("ngram_size")?.saturating_sub(1).saturating_mul(config.size("heads_per_ngram")?);
    let (width, hidden) = (config.u32("ple_embed_dim")?, config.size("hidden_size")?);
    let width = width.map_or(hidden, |width| width as usize);
    match width.checked_div(heads).filter(|columns| columns * heads == width) {
        Some(columns) => keys.add("embedding_length_per_layer_input", u32::try_from(columns).unwrap_or(u32::MAX)),
        None => return Err(config.wrong("ple_embed_dim", width, format!("a multiple of {heads} heads"))),
    }
    for (end, key) in HASH {
        keys.add(key, &numbers(keys, files, end)?[..]);
    }
    Ok(())
}

/// The integers of the only tensor whose name has this end.
fn numbers(keys: &Keys<'_>, files: &Safetensors, end: &str) -> Result<Vec<u64>, HuggingFaceError> {
    let missing = || keys.config.fault(HuggingFaceFault::MissingTensor { tensor: end.to_owned() });
    let tensor = files.tensors().iter().find(|tensor| tensor.name.ends_with(end)).ok_or_else(missing)?;
    let wrong = || {
        let (name, dtype) = (tensor.name.clone(), tensor.dtype.name.to_owned());
        HuggingFaceFault::NoIntegers { tensor: name, dtype }.in_file(files.path(tensor))
    };
    let bytes = files.bytes(tensor).filter(|_| tensor.dtype.name == "I64").ok_or_else(wrong)?;
    let integers = bytes.as_slice().as_chunks().0.iter().map(|integer| i64::from_le_bytes(*integer));
    integers.map(|integer| u64::try_from(integer).map_err(|_| wrong())).collect()
}
