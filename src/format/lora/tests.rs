//! What is read of adapters, and what is refused.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::LoraFile;
use super::peft_config::PeftConfig;

fn config(changes: &Value) -> String {
    let mut config = json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none" });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

fn error(changes: &Value) -> String {
    PeftConfig::parse(&config(changes)).map(drop).unwrap_err().to_string()
}

#[test]
fn patterns_choose_the_rank_and_alpha_of_a_module() {
    let changes =
        json!({ "rank_pattern": { "up_proj": 4, r"layers\.0\.mlp.*": 2 }, "alpha_pattern": { "mlp.up_proj": 6 } });
    let parsed = PeftConfig::parse(&config(&changes)).unwrap();
    assert_eq!(parsed.rank_and_scale("model.layers.1.mlp.up_proj"), (4, 1.5));
    assert_eq!(parsed.rank_and_scale("model.layers.0.mlp.down_proj"), (2, 8.0));
    assert_eq!(parsed.rank_and_scale("model.layers.1.self_attn.q_proj"), (8, 2.0));
    let stabilised = PeftConfig::parse(&config(&json!({ "r": 4, "use_rslora": true }))).unwrap();
    assert_eq!(stabilised.rank_and_scale("model.layers.1.mlp.up_proj"), (4, 8.0));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (changes, field) in [
        (json!({ "use_dora": true }), "use_dora"),
        (json!({ "fan_in_fan_out": true }), "fan_in_fan_out"),
        (json!({ "bias": "all" }), "bias"),
        (json!({ "modules_to_save": ["lm_head"] }), "modules_to_save"),
        (json!({ "peft_type": "IA3" }), "peft_type"),
        (json!({ "init_lora_weights": "pissa_niter_4" }), "init_lora_weights"),
        (json!({ "alora_invocation_tokens": [1, 2] }), "alora_invocation_tokens"),
        (json!({ "r": 0 }), "r"),
        (json!({ "lora_alpha": null }), "lora_alpha"),
        (json!({ "rank_pattern": { "(": 2 } }), "rank_pattern"),
    ] {
        let error = error(&changes);
        assert!(error.contains(&format!("`{field}`")), "{changes}: {error}");
    }
    for allowed in
        [json!({ "modules_to_save": null }), json!({ "rank_pattern": {} }), json!({ "init_lora_weights": true })]
    {
        assert!(PeftConfig::parse(&config(&allowed)).is_ok(), "{allowed}");
    }
}

#[test]
fn directories_without_readable_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = || LoraFile::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error().contains("adapter_config.json"), "{}", error());
    std::fs::write(folder.path().join("adapter_config.json"), config(&json!({}))).unwrap();
    assert!(error().contains("no adapter_model.safetensors"), "{}", error());
    std::fs::write(folder.path().join("adapter_model.bin"), b"x").unwrap();
    assert!(error().contains("pickled"), "{}", error());
}

/// A safetensors file of zeros.
fn weights(tensors: &[(&str, [usize; 2])]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += shape[0] * shape[1] * 4;
        header.insert((*name).to_owned(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + end, 0);
    file
}

#[test]
fn tensors_that_are_no_pair_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), config(&json!({ "r": 2 }))).unwrap();
    let open = |tensors: &[(&str, [usize; 2])]| {
        std::fs::write(folder.path().join("adapter_model.safetensors"), weights(tensors)).unwrap();
        LoraFile::open(folder.path())
    };
    let [a, b] = ["A", "B"].map(|half| format!("base_model.model.model.layers.0.mlp.up_proj.lora_{half}.weight"));
    let opened = open(&[(&a, [2, 4]), (&b, [6, 2])]).unwrap();
    assert_eq!((opened.pairs.len(), opened.max_rank(), opened.pairs[0].scale), (1, 2, 8.0));
    let error = |tensors| open(tensors).map(drop).unwrap_err().to_string();
    for (tensors, named) in [
        (&[(&*a, [2, 4])][..], "lora_B.weight"),
        (&[(&*a, [3, 4]), (&*b, [6, 3])][..], "has rank 3"),
        (&[("base_model.model.lm_head.weight", [2, 2])][..], "lm_head.weight"),
        (&[("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", [2, 2])][..], "lora_magnitude_vector"),
        (&[][..], "has no tensors"),
    ] {
        let error = error(tensors);
        assert!(error.contains(named), "{error}");
    }
}
