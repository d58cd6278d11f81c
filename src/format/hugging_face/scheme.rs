//! The scheme that a config states for its weights, or why it is not supported.

use serde_json::Value;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::float8::Float8;
use super::packed::{Order, PackedIntegers};
use super::stored::Scheme;

/// The scheme that the config states; `None` for weights that are not quantized.
pub(super) fn read(config: &Config) -> Result<Option<Box<dyn Scheme>>, HuggingFaceError> {
    let stated = config.get("quantization_config").or_else(|| config.get("compression_config"));
    let Some(stated) = stated else { return Ok(None) };
    let text = |key: &str| stated.get(key).and_then(|value| value.as_str());
    let method = text("quant_method").or_else(|| text("quant_algo")).unwrap_or("unknown");
    let scheme = match (method, text("format").unwrap_or("no format")) {
        ("compressed-tensors", "pack-quantized") => integers(&groups(stated), Order::Outputs),
        ("compressed-tensors", "float-quantized") => float8(&groups(stated), "block_structure"),
        ("compressed-tensors", format) => Err(format),
        ("gptq", _) => integers(&[stated], Order::Inputs),
        ("fp8", _) => float8(&[stated], "weight_block_size"),
        _ => Err(""),
    };
    scheme.map(Some).map_err(|reason| {
        let method = if reason.is_empty() { method.to_owned() } else { format!("{method}, {reason}") };
        config.fault(HuggingFaceFault::Quantized { method })
    })
}

/// What compressed-tensors states for the weights of each group of modules.
fn groups(stated: &Value) -> Vec<&Value> {
    let groups = stated.get("config_groups").and_then(|groups| groups.as_object());
    groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| group.get("weights")).collect()
}

fn integers(weights: &[&Value], order: Order) -> Result<Box<dyn Scheme>, &'static str> {
    let flag = |weights: &Value, keys: [&str; 2]| keys.iter().find_map(|key| weights.get(*key)?.as_bool());
    for weights in weights {
        if flag(weights, ["symmetric", "sym"]) != Some(true) {
            return Err("with zero points");
        }
        let is_ordered =
            weights.get("actorder").is_some_and(|order| !order.is_null() && order != "weight" && order != false);
        if is_ordered || flag(weights, ["desc_act", "desc_act"]) == Some(true) {
            return Err("with groups in the order of activations");
        }
    }
    let bits = |weights: &&Value| weights.get("num_bits").or_else(|| weights.get("bits"))?.as_u64();
    match weights.iter().map(bits).collect::<Option<Vec<_>>>().as_deref() {
        Some([first, rest @ ..]) if [4, 8].contains(first) && rest.iter().all(|bits| bits == first) => {
            Ok(Box::new(PackedIntegers { bits: *first as usize, order }))
        }
        _ => Err("with other than 4 or 8 bits"),
    }
}

/// Weights in 8-bit floating point. `block_key` is the key of the outputs and inputs that share a scale.
fn float8(weights: &[&Value], block_key: &str) -> Result<Box<dyn Scheme>, &'static str> {
    let all =
        |key: &str, wanted: Value| weights.iter().all(|weights| weights.get(key).is_none_or(|value| *value == wanted));
    if !all("fmt", "e4m3".into()) {
        return Err("in another floating-point type than E4M3");
    }
    if !all("num_bits", 8.into()) || !all("type", "float".into()) {
        return Err("in another type than 8-bit floating point");
    }
    if !all("symmetric", true.into()) {
        return Err("with zero points");
    }
    let stated = weights.iter().filter_map(|weights| weights.get(block_key)).filter(|block| !block.is_null());
    let blocks: Vec<Option<[usize; 2]>> = stated.map(block_of).collect();
    match &blocks[..] {
        [] => Ok(Box::new(Float8 { block: None })),
        [Some(first), rest @ ..] if rest.iter().all(|block| *block == Some(*first)) => {
            Ok(Box::new(Float8 { block: Some(*first) }))
        }
        _ => Err("with blocks that are no two sizes above 0, or with several"),
    }
}

/// The outputs and inputs of a block.
fn block_of(stated: &Value) -> Option<[usize; 2]> {
    let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
    match &stated.as_array()?[..] {
        [outputs, inputs] => Some([size(outputs)?, size(inputs)?]),
        _ => None,
    }
}
