//! What `config.json` states about weights and activations in 8 bits.

use serde_json::{Value, json};

use super::plan::PlannedTensor;

/// The head. Tied models have no tensor of it, but a linear layer.
const HEAD: &str = "lm_head";

/// The key, as compressed-tensors writes it.
pub(super) fn quantization_config(tensors: &[PlannedTensor]) -> Value {
    json!({
        "config_groups": {
            "group_0": {
                "format": FORMAT,
                "targets": ["Linear"],
                "weights": arguments("channel", false),
                "input_activations": arguments("token", true),
                "output_activations": null,
            },
        },
        "format": FORMAT,
        "ignore": ignored(tensors),
        "kv_cache_scheme": null,
        "quant_method": METHOD,
        "quantization_status": "compressed",
    })
}

/// The scheme.
const METHOD: &str = "compressed-tensors";

/// How it stores these weights.
const FORMAT: &str = "int-quantized";

/// Whether a config states that weights are stored as a quantization writes them.
pub(super) fn is_written(config: &Value) -> bool {
    let stated = |key: &str| config.pointer(&format!("/quantization_config/{key}")).and_then(Value::as_str);
    (stated("quant_method"), stated("format")) == (Some(METHOD), Some(FORMAT))
}

fn arguments(strategy: &str, is_dynamic: bool) -> Value {
    json!({
        "num_bits": 8,
        "type": "int",
        "symmetric": true,
        "strategy": strategy,
        "dynamic": is_dynamic,
        "group_size": null,
        "block_structure": null,
        "actorder": null,
        "observer": if is_dynamic { Value::Null } else { "minmax".into() },
        "observer_kwargs": {},
    })
}

/// The modules that are not quantized. Experts in one tensor have no modules of their own, so a pattern stands for them.
fn ignored(tensors: &[PlannedTensor]) -> Vec<String> {
    let kept = tensors.iter().filter(|tensor| !tensor.is_quantized && tensor.shape.len() > 1);
    let module = |tensor: &PlannedTensor| match tensor.name.strip_suffix(".weight") {
        Some(module) => Some(module.to_owned()),
        None => {
            let (experts, _) = tensor.name.rsplit_once('.').filter(|_| tensor.shape.len() > 2)?;
            Some(format!("re:{}\\..*", regex::escape(experts)))
        }
    };
    let mut modules: Vec<String> = kept.filter_map(module).chain([HEAD.to_owned()]).collect();
    modules.sort();
    modules.dedup();
    modules
}

/// The text of a config with one more key at its end. The rest stays as it is, also numbers that JSON does not have; `None` if the
/// text is not that of an object with keys.
pub(super) fn with_key(text: &str, key: &str, value: &Value) -> Option<String> {
    let object = text.trim_end().strip_suffix('}')?.trim_end();
    let added = format!("{value:#}").replace('\n', "\n  ");
    (!object.ends_with('{')).then(|| format!("{object},\n  {}: {added}\n}}\n", json!(key)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_added_to_the_text_of_a_config() {
        let text = with_key("{\n  \"a\": [0.0, Infinity]\n}\n", "b", &json!({ "c": 1 })).unwrap();
        assert_eq!(text, "{\n  \"a\": [0.0, Infinity],\n  \"b\": {\n    \"c\": 1\n  }\n}\n");
        assert_eq!(with_key("[]", "b", &Value::Null), None);
        assert_eq!(with_key("{ }", "b", &Value::Null), None);
    }
}
