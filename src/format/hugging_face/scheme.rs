//! The scheme that a config states for its weights, or why it is not supported.

use serde_json::Value;

use super::config::Config;
use super::error::{HuggingFaceError, HuggingFaceFault};
use super::float4::Float4;
use super::float8::Float8;
use super::float8_and_4::Float8And4;
use super::normal_float4::NormalFloat4;
use super::nvfp4::Nvfp4;
use super::packed::{Order, PackedIntegers, ZeroPoints};
use super::stored::Scheme;

/// The scheme that the config states, or the one of ModelOpt next to it; `None` for weights that are not quantized.
pub(super) fn read(config: &Config, of_modelopt: Option<&Value>) -> Result<Option<Box<dyn Scheme>>, HuggingFaceError> {
    let stated = config.get("quantization_config").or_else(|| config.get("compression_config"));
    let Some(stated) = stated.or_else(|| of_modelopt?.get("quantization")) else { return Ok(None) };
    let text = |key: &str| stated.get(key).and_then(|value| value.as_str());
    let method = text("quant_method").or_else(|| text("quant_algo")).unwrap_or("unknown");
    let scheme = match (method, text("format").unwrap_or("no format")) {
        ("compressed-tensors", "pack-quantized") => integers(&groups(stated), Order::Outputs, ZeroPoints::AsTheyAre),
        ("compressed-tensors", "int-quantized") => integers(&groups(stated), Order::Bytes, ZeroPoints::AsTheyAre),
        ("compressed-tensors", "float-quantized") => float8(&groups(stated), "block_structure"),
        ("compressed-tensors", "mxfp4-pack-quantized") => Ok(Box::new(Float4::Modules) as Box<dyn Scheme>),
        ("compressed-tensors", "nvfp4-pack-quantized") => Ok(Box::new(Nvfp4::CompressedTensors) as Box<dyn Scheme>),
        ("compressed-tensors", format) => Err(format),
        ("modelopt", _) => modelopt(text("quant_algo").unwrap_or("no quant_algo")),
        // The file of ModelOpt states no method.
        _ if text("quant_method").is_none() && text("quant_algo").is_some() => modelopt(method),
        ("gptq", _) => gptq(stated),
        ("awq", _) => awq(stated),
        ("bitsandbytes", _) => bitsandbytes(stated),
        ("mxfp4", _) => Ok(Box::new(Float4::Blocks) as Box<dyn Scheme>),
        ("fp8", _) if expert_type(config, stated) == Some("fp4") => float8_of(&[stated], "weight_block_size")
            .map(|of_others| Box::new(Float8And4(of_others)) as Box<dyn Scheme>),
        ("fp8" | "mxfp8", _) => float8(&[stated], "weight_block_size"),
        ("fbgemm_fp8", _) => float8(&[], ""),
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

/// Integers of GPTQ, in the format of its checkpoint.
fn gptq(stated: &Value) -> Result<Box<dyn Scheme>, &'static str> {
    match stated.get("checkpoint_format").and_then(Value::as_str).unwrap_or("gptq") {
        "gptq" => integers(&[stated], Order::Inputs, ZeroPoints::LessOne),
        "gptq_v2" => integers(&[stated], Order::Inputs, ZeroPoints::AsTheyAre),
        _ => Err("in another checkpoint_format than gptq and gptq_v2"),
    }
}

/// Integers of AWQ, in the version of its kernel for several rows.
fn awq(stated: &Value) -> Result<Box<dyn Scheme>, &'static str> {
    let version = stated.get("version").or_else(|| stated.get("format")).and_then(Value::as_str).unwrap_or("gemm");
    match (version.eq_ignore_ascii_case("gemm"), stated.get("bits").and_then(Value::as_u64)) {
        (true, Some(4)) => integers(&[stated], Order::Interleaved, ZeroPoints::AsTheyAre),
        (true, _) => Err("with other than 4 bits"),
        (false, _) => Err("in another version than gemm"),
    }
}

/// Codes of bitsandbytes, in bytes.
fn bitsandbytes(stated: &Value) -> Result<Box<dyn Scheme>, &'static str> {
    let text = |key: &str| stated.get(key).and_then(Value::as_str);
    match (text("bnb_4bit_quant_type"), text("bnb_4bit_quant_storage").unwrap_or("uint8")) {
        _ if stated.get("load_in_4bit") != Some(&Value::Bool(true)) => Err("with other than 4 bits"),
        (Some("nf4"), "uint8") => Ok(Box::new(NormalFloat4)),
        (Some("nf4"), _) => Err("stored in another type than uint8"),
        _ => Err("in another type than nf4"),
    }
}

/// Weights of ModelOpt.
fn modelopt(algorithm: &str) -> Result<Box<dyn Scheme>, &str> {
    match algorithm {
        "NVFP4" => Ok(Box::new(Nvfp4::ModelOpt)),
        "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" => Ok(Box::new(Float8 { block: None })),
        "FP8_PB_WO" => Ok(Box::new(Float8 { block: Some([128, 128]) })),
        _ => Err(algorithm),
    }
}

/// Integers with a scale and possibly a zero point for each group. `stored` is how the scheme stores zero points.
fn integers(weights: &[&Value], order: Order, stored: ZeroPoints) -> Result<Box<dyn Scheme>, &'static str> {
    let flag = |weights: &Value, key: &str| weights.get(key).and_then(Value::as_bool);
    let is_symmetric = |weights: &&Value| match order {
        Order::Outputs | Order::Bytes => flag(weights, "symmetric").unwrap_or(true),
        Order::Inputs => flag(weights, "sym").unwrap_or(false),
        Order::Interleaved => false,
    };
    let zero_points = match weights.iter().filter(|weights| is_symmetric(weights)).count() {
        0 => Some(stored),
        symmetric if symmetric == weights.len() => None,
        _ => return Err("with and without zero points"),
    };
    let states_order = |weights: &&Value| {
        let order = weights.get("actorder").filter(|order| !order.is_null() && **order != false);
        order.is_some_and(|order| order != "weight" && order != "static") || flag(weights, "desc_act") == Some(true)
    };
    let has_group_order = weights.iter().any(states_order);
    let bits = |weights: &&Value| weights.get("num_bits").or_else(|| weights.get("bits"))?.as_u64();
    match weights.iter().map(bits).collect::<Option<Vec<_>>>().as_deref() {
        Some([first, rest @ ..]) if [4, 8].contains(first) && rest.iter().all(|bits| bits == first) => {
            // A byte holds one code also of those with fewer bits.
            let bits = if order == Order::Bytes { 8 } else { *first as usize };
            Ok(Box::new(PackedIntegers { bits, order, zero_points, has_group_order }))
        }
        _ => Err("with other than 4 or 8 bits"),
    }
}

/// The type of experts, where it differs from that of other weights.
fn expert_type<'a>(config: &'a Config, stated: &'a Value) -> Option<&'a str> {
    const KEY: &str = "expert_dtype";
    stated.get(KEY).or_else(|| config.get(KEY))?.as_str()
}

/// Weights in 8-bit floating point. `block_key` is the key of the outputs and inputs that share a scale.
fn float8(weights: &[&Value], block_key: &str) -> Result<Box<dyn Scheme>, &'static str> {
    float8_of(weights, block_key).map(|scheme| Box::new(scheme) as Box<dyn Scheme>)
}

fn float8_of(weights: &[&Value], block_key: &str) -> Result<Float8, &'static str> {
    let all =
        |key: &str, wanted: Value| weights.iter().all(|weights| weights.get(key).is_none_or(|value| *value == wanted));
    if !all("fmt", "e4m3".into()) && !all("fmt", "float8_e4m3fn".into()) {
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
        [] => Ok(Float8 { block: None }),
        [Some(first), rest @ ..] if rest.iter().all(|block| *block == Some(*first)) => {
            Ok(Float8 { block: Some(*first) })
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
