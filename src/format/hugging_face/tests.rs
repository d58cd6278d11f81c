//! Small directories that are whole, damaged or not supported.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value as Json, json};

use super::Directory;
use crate::checkpoint;
use crate::format::gguf::Metadata;

/// The name, type and shape of a tensor.
pub(super) type TensorSpec<'a> = (&'a str, &'a str, &'a [usize]);

/// A safetensors file of zeros.
pub(super) fn safetensors(tensors: &[TensorSpec<'_>]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let size = match *dtype {
            "F32" | "I32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        let start = end;
        end += shape.iter().product::<usize>() * size;
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Json::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + end, 0);
    file
}

fn config() -> Json {
    json!({
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 64, "intermediate_size": 12, "rms_norm_eps": 1e-5,
        "vocab_size": 16, "rope_theta": 500_000.0, "hidden_act": "silu"
    })
}

/// The config with some values replaced; `null` removes one.
fn with(changes: &Json) -> Json {
    let mut config = config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";
const TENSORS: &[TensorSpec<'static>] = &[
    ("model.embed_tokens.weight", "BF16", &[16, 8]),
    (QUERY, "BF16", &[8, 8]),
    ("model.layers.0.mlp.up_proj.weight", "BF16", &[12, 8]),
    ("lm_head.weight", "BF16", &[16, 8]),
];

fn folder(config: &Json, tensors: &[TensorSpec<'_>]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors(tensors)).unwrap();
    folder
}

fn open(config: &Json) -> Directory {
    Directory::open(folder(config, TENSORS).path()).unwrap()
}

fn error_of(config: &Json, tensors: &[TensorSpec<'_>]) -> String {
    Directory::open(folder(config, tensors).path()).map(drop).unwrap_err().to_string()
}

#[test]
fn a_directory_has_the_keys_and_tensors_of_a_file() {
    let directory = open(&config());
    assert_eq!(directory.str("general.architecture").unwrap(), "llama");
    assert_eq!(directory.u32("llama.attention.head_count_kv").unwrap(), 1);
    assert_eq!(directory.f32("llama.rope.freq_base").unwrap(), 500_000.0);
    assert_eq!(directory.tensor("blk.0.ffn_up.weight").unwrap().dims, [8, 12]);
    let [plain, permuted] = ["blk.0.ffn_up.weight", "blk.0.attn_q.weight"].map(|name| directory.weight(name).unwrap());
    assert!(plain.is_in_file() && !permuted.is_in_file());
    assert_eq!((permuted.rows, permuted.columns, permuted.bytes().len()), (8, 8, 128));
}

#[test]
fn a_tied_model_has_no_output_matrix() {
    assert!(open(&config()).tensor("output.weight").is_some());
    assert!(open(&with(&json!({ "tie_word_embeddings": true }))).tensor("output.weight").is_none());
}

#[test]
fn values_of_text_models_come_first() {
    let mut nested = json!({ "model_type": "gemma3", "hidden_size": 1, "text_config": config() });
    nested["text_config"]["model_type"] = "gemma3_text".into();
    nested["text_config"]["hidden_act"] = Json::Null;
    let directory = open(&nested);
    assert_eq!(directory.str("general.architecture").unwrap(), "gemma3");
    assert_eq!(directory.u32("gemma3.embedding_length").unwrap(), 8);
}

#[test]
fn text_models_within_another_may_state_only_what_differs() {
    let text = json!({ "model_type": "qwen2", "intermediate_size": 11_008, "max_position_embeddings": 8192, "vocab_size": 16 });
    let directory = open(&json!({ "model_type": "qwen2_audio", "audio_config": {}, "text_config": text }));
    let keys = ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"];
    let found = keys.map(|key| directory.u32(&format!("qwen2.{key}")).unwrap());
    assert_eq!(found, [32, 4096, 32, 11_008, 8192]);
    let error = error_of(&text, TENSORS);
    assert!(error.contains("lacks the key \"num_hidden_layers\""), "{error}");
}

#[test]
fn old_and_new_spellings_of_rotation_give_the_same_keys() {
    let keys = |rope: Json| {
        let directory = open(&with(&rope));
        let keys = directory.metadata().iter().filter(|(key, _)| key.contains("rope"));
        let keys: Vec<String> = keys.map(|(key, value)| format!("{key} {value}")).collect();
        let factors = directory.weight("rope_freqs.weight").ok().map(|weight| weight.to_f32());
        (keys, factors)
    };
    let yarn = json!({ "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0 });
    let spelled = |name: &str, kind: &str, extra: &Json| {
        let mut values = extra.clone();
        values[name] = kind.into();
        values
    };
    for (kind, values) in [
        ("yarn", yarn),
        ("linear", json!({ "factor": 2.0 })),
        (
            "llama3",
            json!({ "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 32 }),
        ),
    ] {
        let old = keys(json!({ "rope_theta": 9.0, "rope_scaling": spelled("type", kind, &values) }));
        let mut new = spelled("rope_type", kind, &values);
        new["rope_theta"] = 9.0.into();
        assert_eq!(old, keys(json!({ "rope_theta": null, "rope_parameters": new })), "{kind}");
        assert!(old.0.iter().any(|key| key == "llama.rope.freq_base 9"), "{old:?}");
        assert_eq!(old.1.is_some(), kind == "llama3");
    }
}

#[test]
fn each_kind_of_layer_has_its_own_rotation() {
    let rope = json!({ "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 },
                       "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 } });
    let new = open(&with(&json!({ "rope_theta": null, "rope_parameters": rope })));
    let old = open(&with(&json!({ "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                                  "rope_scaling": { "rope_type": "linear", "factor": 8.0 } })));
    for directory in [new, old] {
        assert_eq!(directory.f32("llama.rope.freq_base").unwrap(), 1e6);
        assert_eq!(directory.f32("llama.rope.freq_base_swa").unwrap(), 1e4);
        assert_eq!(directory.f32("llama.rope.scaling.factor").unwrap(), 8.0);
    }
}

#[test]
fn windows_are_those_of_the_layers() {
    let window = |changes: Json| {
        let directory = open(&with(&changes));
        let stated = directory.optional_u32("llama.attention.sliding_window").unwrap();
        (stated, directory.bools("llama.attention.sliding_window_pattern").ok())
    };
    assert_eq!(window(json!({ "sliding_window": null })), (None, None));
    assert_eq!(window(json!({ "sliding_window": 13 })), (Some(13), None));
    assert_eq!(window(json!({ "sliding_window": 13, "layer_types": ["full_attention"] })), (None, None));
    let kinds = ["full_attention", "sliding_attention"];
    let listed = window(json!({ "sliding_window": 13, "num_hidden_layers": 2, "layer_types": kinds }));
    assert_eq!(listed, (Some(13), Some(vec![false, true])));
}

#[test]
fn what_is_not_supported_is_named() {
    let cases = [
        (json!({ "model_type": "brontosaurus" }), "model_type \"brontosaurus\" is not supported"),
        (json!({ "model_type": null }), "lacks the key \"model_type\""),
        (json!({ "hidden_size": null }), "lacks the key \"hidden_size\""),
        (json!({ "hidden_size": "8" }), "key \"hidden_size\" is \"8\", but must be an unsigned"),
        (json!({ "num_attention_heads": 0 }), "key \"num_attention_heads\" is 0, but must be above 0"),
        (json!({ "num_hidden_layers": 4_000_000_000u32 }), "key \"num_hidden_layers\" is 4000000000"),
        (json!({ "rms_norm_eps": [] }), "key \"rms_norm_eps\" is [], but must be a number"),
        (json!({ "hidden_act": "relu" }), "key \"hidden_act\" is \"relu\", but must be silu"),
        (json!({ "use_sliding_window": true }), "key \"use_sliding_window\""),
        (json!({ "rope_scaling": { "type": "spiral" } }), "key \"rope_type\" is \"spiral\""),
        (json!({ "rope_scaling": { "type": "yarn" } }), "lacks the key \"rope_parameters.factor\""),
        (json!({ "quantization_config": { "quant_method": "bitnet" } }), "is quantized with \"bitnet\""),
    ];
    for (changes, expected) in cases {
        let error = error_of(&with(&changes), TENSORS);
        assert!(error.contains("config.json: ") && error.contains(expected), "{error}");
    }
}

/// The values of keys of the directory with this config, as text.
fn values<const N: usize>(changes: &Json, keys: [&str; N]) -> [String; N] {
    let directory = open(&with(changes));
    let architecture = directory.str("general.architecture").unwrap().to_owned();
    keys.map(|key| directory.value(&format!("{architecture}.{key}")).map_or("none".to_owned(), ToString::to_string))
}

#[test]
fn latent_attention_has_the_sizes_of_its_vector() {
    let changes = json!({
        "model_type": "deepseek_v3", "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3, "v_head_dim": 5,
        "rope_scaling": { "type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                          "original_max_position_embeddings": 32 },
        "head_dim": 7, "partial_rotary_factor": 1.0,
    });
    let keys = [
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "rope.dimension_count",
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.attn_factor",
        "expert_gating_func",
    ];
    assert_eq!(values(&changes, keys), ["1", "6", "4", "5", "5", "2", "0.1", "none", "2"]);
}

/// Rows are chosen within blocks of 8-bit floating point; what is transposed becomes float32.
#[test]
fn packed_keys_and_values_of_a_latent_vector_are_divided() {
    let sizes = json!({ "model_type": "deepseek_v3", "kv_lora_rank": 32, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3,
                        "v_head_dim": 5, "quantization_config": { "quant_method": "fp8" } });
    const CODES: &str = "model.layers.0.self_attn.kv_b_proj.weight";
    const SCALES: &str = "model.layers.0.self_attn.kv_b_proj.weight_scale_inv";
    let tensors: [TensorSpec<'_>; 2] = [(CODES, "F8_E4M3", &[16, 32]), (SCALES, "F32", &[])];
    let directory = Directory::open(folder(&with(&sizes), &tensors).path()).unwrap();
    let of = |name: &str| {
        let (tensor, weight) = (directory.tensor(name).unwrap(), directory.weight(name).unwrap());
        (tensor.dims.clone(), weight.format.name(), weight.to_f32().len())
    };
    assert_eq!(of("blk.0.attn_k_b.weight"), (vec![3, 32, 2], "F32", 192));
    assert_eq!(of("blk.0.attn_v_b.weight"), (vec![32, 5, 2], "F8_E4M3", 320));
    let error = error_of(&with(&sizes), &[(CODES, "F8_E4M3", &[15, 32]), tensors[1]]);
    assert!(error.contains("has the shape [15, 32]"), "{error}");
}

#[test]
fn parameters_in_tensors_become_keys_and_factors_tensors() {
    let names = ["alpha_p", "alpha_n", "beta", "eps"].map(|name| format!("model.layers.0.mlp.act_fn.{name}"));
    let tensors: Vec<TensorSpec<'_>> = names.iter().map(|name| (&name[..], "BF16", &[1][..])).collect();
    let config = with(&json!({ "model_type": "apertus", "hidden_act": "xielu" }));
    let directory = Directory::open(folder(&config, &tensors).path()).unwrap();
    assert_eq!(directory.floats("xielu.beta").unwrap(), [0.0]);
    assert!(error_of(&config, &tensors[1..]).contains("lacks the tensor \"layers.0.mlp.act_fn.alpha_p\""));
    let wide: TensorSpec<'_> = (tensors[0].0, "BF16", &[2]);
    assert!(error_of(&config, &[wide, tensors[1], tensors[2], tensors[3]]).contains("has the shape [2]"));
    let factors = json!({ "model_type": "falcon_h1", "attention_in_multiplier": 0.5, "key_multiplier": 3.0,
                          "mlp_multipliers": [1.0, 4.0] });
    let matrices = ["self_attn.q_proj", "self_attn.k_proj", "feed_forward.gate_proj", "feed_forward.down_proj"];
    let names = matrices.map(|name| format!("model.layers.0.{name}.weight"));
    let tensors: Vec<TensorSpec<'_>> = names.iter().map(|name| (&name[..], "BF16", &[8, 8][..])).collect();
    let directory = Directory::open(folder(&with(&factors), &tensors).path()).unwrap();
    let factor = |name: &str| directory.weight(&format!("blk.0.{name}.scale")).ok().map(|weight| weight.to_f32()[0]);
    let found = ["attn_q", "attn_k", "ffn_gate", "ffn_down", "ssm_out"].map(factor);
    assert_eq!(found, [Some(0.5), Some(1.5), None, Some(4.0), None]);
    // Gate, x, B, C and time steps of one head of length 2, one group and a state of length 1.
    let sections = json!({ "model_type": "falcon_h1", "mamba_n_heads": 1, "mamba_d_head": 2, "mamba_n_groups": 1,
                           "mamba_d_state": 1, "ssm_in_multiplier": 2.0, "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0] });
    let input = |rows: &'static [usize]| [("model.layers.0.mamba.in_proj.weight", "BF16", rows)];
    let directory = Directory::open(folder(&with(&sections), &input(&[7, 8])).path()).unwrap();
    assert_eq!(directory.weight("blk.0.ssm_in.weight").unwrap().format.name(), "F32");
    assert!(error_of(&with(&sections), &input(&[6, 8])).contains("has the shape [6, 8]"));
}

#[test]
fn layers_with_one_half_have_no_size_for_the_other() {
    for (layers, architecture) in [
        (json!({ "hybrid_override_pattern": "M-*", "num_hidden_layers": 3 }), "nemotron_h"),
        (json!({ "layers_block_type": ["mamba", "mlp", "attention"], "num_hidden_layers": null }), "nemotron_h"),
        (json!({ "hybrid_override_pattern": "ME*", "moe_intermediate_size": 12 }), "nemotron_h_moe"),
    ] {
        let mut changes = layers;
        changes["model_type"] = "nemotron_h".into();
        changes["hidden_act"] = Json::Null;
        changes["mlp_hidden_act"] = "relu2".into();
        assert_eq!(open(&with(&changes)).str("general.architecture").unwrap(), architecture);
        assert_eq!(values(&changes, ["block_count", "rope.scaling.finetuned"]), ["3", "false"]);
        let directory = open(&with(&changes));
        let of_layers = |key: &str| directory.integers(&format!("{architecture}.{key}")).unwrap();
        assert_eq!(of_layers("attention.head_count_kv"), [0, 0, 1]);
        assert_eq!(of_layers("feed_forward_length"), [0, 12, 0]);
    }
}

#[test]
fn published_and_saved_configs_of_ling_3_give_the_same_sizes() {
    let latent = json!({ "model_type": "bailing_hybrid", "kv_lora_rank": 4, "qk_rope_head_dim": 2,
                         "qk_nope_head_dim": 3, "v_head_dim": 5, "num_hidden_layers": 5 });
    let with_kinds = |mut more: Json| {
        more.as_object_mut().unwrap().extend(latent.as_object().unwrap().clone());
        more
    };
    let published = with_kinds(json!({ "head_dim": 16, "short_conv_kernel_size": 4, "layer_group_size": 2,
                                       "partial_rotary_factor": 0.5, "kda_lower_bound": -4.0 }));
    let kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention", "full_attention"];
    let saved = with_kinds(json!({ "head_dim": 2, "linear_head_dim": 16, "linear_conv_kernel_dim": 4,
                                   "layer_types": kinds, "kda_lower_bound": -4.0 }));
    for config in [published, saved] {
        let keys =
            ["kda.head_dim", "kda.gate_lower_bound", "ssm.conv_kernel", "rope.dimension_count", "expert_gating_func"];
        assert_eq!(values(&config, keys), ["16", "-4", "4", "2", "2"], "{config}");
        let heads = open(&with(&config)).integers("bailingmoe3.attention.head_count_kv").unwrap();
        assert_eq!(heads, [0, 1, 0, 1, 1], "{config}");
    }
    let unsafe_gate = with_kinds(json!({ "kda_safe_gate": false, "layer_group_size": 2 }));
    assert!(error_of(&with(&unsafe_gate), TENSORS).contains("kda_safe_gate"));
}

#[test]
fn layers_that_are_listed_from_1_attend() {
    let with = |more: Json| {
        let delta = json!({ "full_attn_layers": [2, 4, 5], "gate_lower_bound": -5.0 });
        let text = json!({ "model_type": "kimi_linear", "hidden_act": "situ", "kv_lora_rank": 4, "qk_rope_head_dim": 2,
                           "qk_nope_head_dim": 3, "v_head_dim": 5, "num_hidden_layers": 5, "attn_res_block_size": 12,
                           "linear_attn_config": delta });
        with(&json!({ "model_type": "kimi_k3", "text_config": text, "mla_use_output_gate": more }))
    };
    let open = open(&with(json!(true)));
    assert_eq!(open.integers("kimi-k3.attention.head_count_kv").unwrap(), [0, 1, 0, 1, 1]);
    assert_eq!(open.f32("kimi-k3.kda.gate_lower_bound").unwrap(), -5.0);
    assert!(error_of(&with(json!(false)), TENSORS).contains("mla_use_output_gate"));
}

#[test]
fn sizes_that_families_state_differently_are_found() {
    let cases = [
        (json!({ "model_type": "lfm2", "intermediate_size": 12288, "block_auto_adjust_ff_dim": true }), "8192"),
        (json!({ "model_type": "lfm2", "block_ff_dim": 6656, "intermediate_size": 1 }), "6656"),
        (json!({ "model_type": "hunyuan_v1_moe", "intermediate_size": [12, 12] }), "12"),
        (
            json!({ "model_type": "falcon", "hidden_act": "gelu", "parallel_attn": true, "intermediate_size": null }),
            "32",
        ),
        (json!({ "model_type": "llama4_text", "intermediate_size_mlp": 24 }), "24"),
        (json!({ "model_type": "cohere2_moe", "prefix_dense_intermediate_size": 24 }), "24"),
        (
            json!({ "model_type": "bloom", "apply_residual_connection_post_layernorm": false, "intermediate_size": null }),
            "32",
        ),
        (json!({ "model_type": "mpt", "expansion_ratio": 3, "intermediate_size": null }), "24"),
        (json!({ "model_type": "mamba" }), "0"),
    ];
    for (changes, expected) in cases {
        assert_eq!(values(&changes, ["feed_forward_length"]), [expected], "{changes}");
    }
    let chunks = json!({ "model_type": "llama4_text", "no_rope_layers": [], "attention_chunk_size": null,
                         "attn_temperature_tuning": false, "attn_scale": 0.1 });
    let keys = ["attention.sliding_window", "attention.rope_pattern", "attention.temperature_scale"];
    assert_eq!(values(&chunks, keys), ["0", "none", "0"]);
    let alpha = json!({ "model_type": "hunyuan_v1_dense", "head_dim": 4, "rope_theta": 10_000.0,
                        "rope_scaling": { "type": "dynamic", "alpha": 4.0 } });
    assert_eq!(values(&alpha, ["rope.freq_base"]), ["160000"]);
    let old = json!({ "model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.5, "rotary_emb_base": 9.0 });
    assert_eq!(values(&old, ["rope.dimension_count", "rope.freq_base"]), ["2", "9"]);
}

/// Lists may go on with layers that predict more tokens, and layers of a kind may have heads of their own.
#[test]
fn sizes_of_layers_follow_from_their_kinds() {
    let step = json!({
        "model_type": "step3p5", "num_hidden_layers": 2, "num_key_value_heads": null, "num_attention_groups": 2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 13,
        "attention_other_setting": { "num_attention_heads": 4, "num_attention_groups": 1 },
        "rope_theta": [5.0, 7.0, 7.0], "partial_rotary_factors": [0.5, 1.0, 1.0],
        "rope_scaling": { "rope_type": "linear", "factor": 2.0 }, "swiglu_limits": [null, 7.0, 0.0],
    });
    let keys = ["rope.freq_base", "rope.freq_base_swa", "rope.scaling.factor", "rope.dimension_count"];
    assert_eq!(values(&step, keys), ["5", "7", "2", "none"]);
    let directory = open(&with(&step));
    let heads = ["head_count", "head_count_kv"].map(|key| format!("step35.attention.{key}"));
    assert_eq!(heads.map(|key| directory.integers(&key).unwrap()), [[2, 4], [2, 1]]);
    assert_eq!(directory.bools("step35.attention.sliding_window_pattern").unwrap(), [false, true]);
    assert_eq!(directory.floats("step35.swiglu_clamp_exp").unwrap(), [0.0, 7.0, 0.0]);
    let block = |group: Json, factor: Json, linear: bool| json!({ "attention": { "n_heads_in_group": group, "replace_with_linear": linear }, "ffn": { "ffn_mult": factor } });
    let mut nas = json!({ "model_type": "nemotron-nas", "num_hidden_layers": 3, "num_attention_heads": 2,
        "block_configs": [block(json!(2), json!(96.5), false), block(Json::Null, json!(1.0), true),
                          block(Json::Null, Json::Null, false)] });
    let directory = open(&with(&nas));
    let sizes = ["attention.head_count", "attention.head_count_kv", "feed_forward_length"];
    let sizes = sizes.map(|key| directory.integers(&format!("deci.{key}")).unwrap());
    assert_eq!(sizes, [[2, 2, 0], [1, 0, 0], [768, 256, 0]]);
    nas["block_configs"][1]["ffn"]["replace_with_linear"] = json!(true);
    let error = error_of(&with(&nas), TENSORS);
    assert!(error.contains("block_configs.1.ffn.replace_with_linear\" is true, but must be false"), "{error}");
    let mut third = step.clone();
    third["partial_rotary_factors"] = json!([0.25, 1.0, 1.0]);
    assert!(error_of(&with(&third), TENSORS).contains("key \"partial_rotary_factor\" is 0.25, but must be 0.5"));
    let mimo = json!({
        "model_type": "mimo_v2_flash", "num_hidden_layers": 2, "hybrid_layer_pattern": [0, 1], "head_dim": 6, "v_head_dim": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 6, "swa_v_head_dim": 4, "sliding_window_size": 12, "sliding_window": 12,
        "swa_rope_theta": 9.0, "layernorm_epsilon": 0.5, "attention_value_scale": 0.25,
    });
    assert_eq!(open(&with(&mimo)).integers("mimo2.attention.head_count_kv").unwrap(), [1, 2]);
    let keys = [
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_swa",
        "attention.sliding_window",
        "rope.freq_base_swa",
        "attention.layer_norm_rms_epsilon",
        "attention.value_scale",
    ];
    assert_eq!(values(&mimo, keys), ["6", "4", "none", "13", "9", "0.5", "0.25"]);
}

/// Keys of configs as they are published, some of which transformers does not write when it saves a model.
#[test]
fn keys_of_published_configs_are_understood() {
    let gemma = json!({ "model_type": "gemma2", "sliding_window": 4096, "sliding_window_size": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": null });
    assert_eq!(values(&gemma, ["attention.sliding_window"]), ["4096"]);
    let minimax = json!({ "model_type": "minimax_m2", "head_dim": 8, "rotary_dim": 4 });
    assert_eq!(values(&minimax, ["rope.dimension_count"]), ["4"]);
    let stated_twice =
        json!({ "model_type": "minimax_m2", "head_dim": 8, "rotary_dim": 4, "partial_rotary_factor": 0.25 });
    assert_eq!(values(&stated_twice, ["rope.dimension_count"]), ["2"]);
    let indexer = json!({ "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_local_block": 1 });
    let minimax_3 = json!({ "model_type": "minimax_m3", "hidden_act": "swigluoai", "moe_layer_freq": [0, 1],
        "dense_intermediate_size": 48, "intermediate_size": 12, "sparse_attention_config": indexer });
    let keys = ["feed_forward_length", "expert_feed_forward_length", "leading_dense_block_count"];
    assert_eq!(values(&minimax_3, keys), ["48", "12", "1"]);
    let keys = ["top_k", "block_size", "local_blocks"].map(|key| format!("attention.indexer.{key}"));
    assert_eq!(values(&minimax_3, keys.each_ref().map(String::as_str)), ["16", "128", "1"]);
    // A part of the whole head, and not of its rotated section.
    let mistral_4 = json!({ "model_type": "mistral4", "kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64,
        "v_head_dim": 128, "rope_parameters": { "rope_theta": 1e4, "partial_rotary_factor": 0.5 } });
    assert_eq!(values(&mistral_4, ["rope.dimension_count", "attention.key_length_mla"]), ["64", "128"]);
    let hunyuan_4 = json!({ "model_type": "hy_v4", "hc_mult": 4, "hc_magnitude": 2.0, "swiglu_limit": 10.0,
        "indexer_types": ["full"], "mlp_layer_types": ["dense", "sparse"] });
    let keys = ["hyper_connection.count", "hyper_connection.magnitude", "swiglu_clamp_exp", "swiglu_clamp_shexp"];
    assert_eq!(values(&hunyuan_4, keys), ["4", "2", "10", "none"]);
    // A product that float32 makes smaller than the whole number.
    let seven_tenths = json!({ "head_dim": 80, "partial_rotary_factor": 0.7 });
    assert_eq!(values(&seven_tenths, ["rope.dimension_count"]), ["56"]);
    let cohere = json!({ "model_type": "cohere2", "position_embedding_type": "rope_gptj", "rotary_pct": 1.0,
        "order_of_interleaved_layers": "local_attn_first", "sliding_window": 4096 });
    assert_eq!(values(&cohere, ["attention.sliding_window"]), ["4096"]);
}

/// transformers has these parts for configs that do not state them, as many published ones do not.
#[test]
fn a_part_of_each_head_rotates_where_a_config_does_not_say_so() {
    let keys = |changes: &Json| {
        let directory = open(&with(changes));
        let keys = directory.metadata().iter().filter(|(key, _)| key != "general.name");
        keys.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>()
    };
    for (model_type, activation, part) in [
        ("glm", "silu", 0.5),
        ("glm4", "silu", 0.5),
        ("glm4_moe", "silu", 0.5),
        ("nemotron", "relu2", 0.5),
        ("phi", "gelu_new", 0.5),
        ("bailing_moe", "silu", 0.5),
        ("gpt_neox", "gelu", 0.25),
        ("stablelm", "silu", 0.25),
        ("qwen3_next", "silu", 0.25),
        ("qwen3_5", "silu", 0.25),
        ("qwen3_5_moe", "silu", 0.25),
    ] {
        let old = json!({ "model_type": model_type, "hidden_act": activation, "head_dim": 8, "use_qk_norm": true });
        let mut stated = old.clone();
        stated[if model_type == "gpt_neox" { "rotary_pct" } else { "partial_rotary_factor" }] = part.into();
        assert_eq!(keys(&old), keys(&stated), "{model_type}");
        assert_eq!(values(&old, ["rope.dimension_count"]), [(8.0 * part).to_string()], "{model_type}");
        let mut new = old.clone();
        new["rope_theta"] = Json::Null;
        new["rope_parameters"] = json!({ "rope_theta": 500_000.0, "partial_rotary_factor": 0.75 });
        assert_eq!(values(&new, ["rope.dimension_count"]), ["6"], "{model_type}");
    }
    for model_type in ["solar_open", "llama"] {
        assert_eq!(values(&json!({ "model_type": model_type }), ["rope.dimension_count"]), ["none"]);
    }
}

#[test]
fn values_that_only_some_models_of_a_family_have_are_carried() {
    let one = |changes: Json, key: &str| {
        let [value] = values(&changes, [key]);
        value
    };
    assert_eq!(one(json!({ "model_type": "qwen2", "is_causal": false }), "attention.causal"), "false");
    assert_eq!(one(json!({ "model_type": "olmo", "clip_qkv": 8.0 }), "attention.clamp_kqv"), "8");
    let cohere = json!({ "model_type": "cohere", "model_max_length": 131_072 });
    assert_eq!(one(cohere, "context_length"), "131072");
    let mamba = json!({ "model_type": "falcon_mamba", "mixer_rms_eps": 0.25, "layer_norm_epsilon": 0.5 });
    let keys = ["ssm.dt_b_c_rms_epsilon", "attention.layer_norm_rms_epsilon"];
    assert_eq!(values(&mamba, keys), ["0.25", "0.5"]);
}

#[test]
fn both_forms_of_gelu_load_where_models_of_a_family_have_either() {
    for (model_type, key, usual, other) in [
        ("gpt_neox", "hidden_act", "gelu", "gelu_fast"),
        ("gpt_bigcode", "activation_function", "gelu_pytorch_tanh", "gelu"),
    ] {
        let stated = |name: &str| {
            let mut changes = json!({ "model_type": model_type });
            changes[key] = name.into();
            let directory = open(&with(&changes));
            let architecture = directory.str("general.architecture").unwrap();
            directory.optional_str(&format!("{architecture}.hidden_activation")).unwrap().map(str::to_owned)
        };
        assert_eq!((stated(usual), stated(other).as_deref()), (None, Some(other)));
        let mut wrong = json!({ "model_type": model_type });
        wrong[key] = "relu".into();
        assert!(error_of(&with(&wrong), TENSORS).contains("must be gelu"));
    }
}

/// The published config of Hunyuan A13B has these.
#[test]
fn sizes_that_are_false_or_of_attention_that_is_not_used_count_as_absent() {
    let hunyuan = json!({
        "model_type": "hunyuan_v1_moe", "n_group": false, "topk_group": false, "routed_scaling_factor": false,
        "use_mla": false, "kv_lora_rank": 5, "q_lora_rank": 6, "qk_rope_head_dim": 2, "qk_nope_head_dim": 4,
        "v_head_dim": 3, "attention_head_dim": 4, "rope_theta": 10_000.0,
        "rope_scaling": { "type": "dynamic", "alpha": 4.0 },
    });
    let keys = [
        "expert_group_count",
        "expert_group_used_count",
        "expert_weights_scale",
        "attention.kv_lora_rank",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
    ];
    assert_eq!(values(&hunyuan, keys), ["none", "none", "none", "none", "1", "4", "4", "160000"]);
    let error = error_of(&with(&json!({ "hidden_size": false })), TENSORS);
    assert!(error.contains("lacks the key \"hidden_size\""), "{error}");
}

#[test]
fn published_sizes_of_other_names_are_found() {
    let keys = ["embedding_length", "block_count", "attention.head_count", "feed_forward_length", "context_length"];
    let nomic = json!({
        "model_type": "nomic_bert", "hidden_size": null, "num_hidden_layers": null, "num_attention_heads": null,
        "intermediate_size": null, "max_position_embeddings": null, "hidden_act": null, "num_key_value_heads": null,
        "n_embd": 8, "n_layer": 1, "n_head": 2, "n_inner": 12, "max_trained_positions": 32,
        "activation_function": "swiglu", "rotary_emb_base": 1000, "prenorm": false,
    });
    assert_eq!(values(&nomic, keys), ["8", "1", "2", "12", "32"]);
    let mut prenorm = nomic;
    prenorm["prenorm"] = true.into();
    assert!(error_of(&with(&prenorm), TENSORS).contains("key \"prenorm\" is true"));
    let chatglm = json!({
        "model_type": "chatglm", "num_hidden_layers": null, "num_layers": 1, "seq_length": 32, "ffn_hidden_size": 12,
        "multi_query_group_num": 1, "kv_channels": 4, "rope_theta": 10_000, "rope_ratio": 500, "layernorm_epsilon": 0.5,
    });
    assert_eq!(values(&chatglm, keys), ["8", "1", "2", "12", "32"]);
    assert_eq!(values(&chatglm, ["rope.freq_base", "rope.dimension_count"]), ["5000000", "2"]);
    let baichuan = json!({ "model_type": "baichuan", "max_position_embeddings": null, "model_max_length": 32,
                           "num_key_value_heads": null });
    assert_eq!(values(&baichuan, keys), ["8", "1", "2", "12", "32"]);
    let output = |vocabulary: u32| {
        let mut config = with(&baichuan);
        config["vocab_size"] = vocabulary.into();
        open(&config).weight("output.weight").unwrap().format.name()
    };
    // In Baichuan 2 the rows of the output matrix have the length 1.
    assert_eq!((output(64_000), output(125_696)), ("BF16", "F32"));
}

#[test]
fn what_families_do_not_compute_is_named() {
    let latent = json!({ "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3, "v_head_dim": 5 });
    for (model_type, key, value, wanted) in [
        ("deepseek_v2", "topk_method", json!("random"), "\"greedy\" or \"group_limited_greedy\" or \"noaux_tc\""),
        ("cohere2", "position_embedding_type", json!("rope"), "\"rope_gptj\""),
        ("cohere2_moe", "rotary_pct", json!(0.5), "1"),
        ("minimax_m2", "rotary_dim", json!(1000), "at most the length of a head"),
        ("minimax_m3", "swiglu_limit", json!(10.0), "7"),
        ("minimax_m3", "index_init_blocks", json!(1), "0"),
        ("hy_v4", "gated_mla", json!(false), "true"),
        ("hy_v4", "enable_ihc", json!(false), "true"),
        ("deepseek_v3", "rope_interleave", json!(false), "true"),
        ("deepseek_v3", "scoring_func", json!("tanh"), "softmax, sigmoid, noaux_tc or sqrtsoftplus"),
        ("falcon", "alibi", json!(true), "false"),
        ("granitemoehybrid", "position_embedding_type", json!("alibi"), "\"rope\" or \"nope\""),
        ("nemotron_h", "hybrid_override_pattern", json!("M?"), "mamba, attention, mlp or moe"),
        ("falcon_h1", "mamba_norm_before_gate", json!(true), "false"),
        ("nemotron_h", "time_step_limit", json!([0.0, 0.1]), "0 and infinity"),
        ("olmoe", "clip_qkv", json!(8.0), "false"),
        ("gemma3n", "altup_correct_scale", json!(false), "true"),
        ("gemma3n", "activation_sparsity_pattern", json!([1.0]), "parts from 0 to below 1"),
        ("bailing_moe", "norm_head", json!(true), "false"),
        ("bloom", "apply_residual_connection_post_layernorm", json!(true), "false"),
        ("mpt", "no_bias", json!(false), "true"),
    ] {
        let mut changes = latent.clone();
        changes["model_type"] = model_type.into();
        changes["hidden_act"] = Json::Null;
        changes["mamba_rms_norm"] = true.into();
        changes[key] = value;
        let error = error_of(&with(&changes), TENSORS);
        let named = if key == "hybrid_override_pattern" { "layers_block_type" } else { key };
        assert!(error.contains(&format!("key \"{named}\" is")) && error.contains(wanted), "{error}");
    }
}

/// A configuration of GPTQ with some values replaced.
fn gptq(changes: &Json) -> Json {
    let mut scheme = json!({ "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "desc_act": false });
    for (key, value) in changes.as_object().unwrap() {
        scheme[key] = value.clone();
    }
    with(&json!({ "hidden_size": 32, "quantization_config": scheme }))
}

/// A configuration of AWQ with some values replaced.
fn awq(changes: &Json) -> Json {
    let mut scheme =
        json!({ "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm" });
    for (key, value) in changes.as_object().unwrap() {
        scheme[key] = value.clone();
    }
    with(&json!({ "hidden_size": 32, "quantization_config": scheme }))
}

/// A configuration of FP8 with some values replaced.
fn fp8(changes: &Json) -> Json {
    let mut scheme = json!({ "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic" });
    for (key, value) in changes.as_object().unwrap() {
        scheme[key] = value.clone();
    }
    with(&json!({ "hidden_size": 64, "quantization_config": scheme }))
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";
const UP_SCALES: &str = "model.layers.0.mlp.up_proj.weight_scale_inv";

#[test]
fn codes_in_floating_point_keep_their_format_and_need_scales_that_fit() {
    let open = |tensors: &[TensorSpec<'_>]| Directory::open(folder(&fp8(&json!({})), tensors).path());
    let codes: TensorSpec<'_> = (UP, "F8_E4M3", &[200, 160]);
    let unused: TensorSpec<'_> = ("model.layers.0.mlp.up_proj.input_scale", "F32", &[]);
    for (dtype, shape) in [
        ("F32", &[2, 2][..]),
        ("BF16", &[2, 2]),
        ("F8_E8M0", &[2, 2]),
        ("U8", &[2, 2]),
        ("BF16", &[200, 1]),
        ("F32", &[]),
        ("F16", &[1]),
    ] {
        let directory = open(&[codes, (UP_SCALES, dtype, shape), unused]).unwrap();
        let tensor = directory.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!((&tensor.dims[..], tensor.bytes()), (&[160, 200][..], 200 * 5 * 36), "{dtype} {shape:?}");
        let weight = directory.weight("blk.0.ffn_up.weight").unwrap();
        assert_eq!((weight.format.name(), weight.to_f32()), ("F8_E4M3", vec![0.0; 32_000]), "{dtype} {shape:?}");
    }
    for (broken, expected) in [
        (vec![codes], UP_SCALES),
        (vec![codes, (UP_SCALES, "F64", &[2, 2])], UP_SCALES),
        (vec![codes, (UP_SCALES, "F32", &[2, 1])], "for each block of the config"),
        (vec![codes, (UP_SCALES, "F32", &[160])], "for each output"),
        (vec![(UP, "F8_E4M3", &[200, 100]), (UP_SCALES, "F32", &[2, 1])], "a multiple of 32 inputs"),
        (vec![(UP, "F8_E4M3", &[200]), (UP_SCALES, "F32", &[1])], UP_SCALES),
        (vec![(UP, "F8_E5M2", &[200, 160]), (UP_SCALES, "F32", &[2, 2])], "has the type F8_E5M2"),
    ] {
        let error = open(&broken).map(drop).unwrap_err().to_string();
        assert!(error.contains(UP) && error.contains(expected), "{error}");
    }
}

#[test]
fn quantizations_that_are_not_supported_are_named() {
    let weights = |weights: Json| json!({ "quant_method": "compressed-tensors", "config_groups": { "a": { "weights": weights } } });
    let compressed = |format: &str| {
        let mut scheme = weights(json!({ "num_bits": 4, "symmetric": true }));
        scheme["format"] = format.into();
        with(&json!({ "quantization_config": scheme }))
    };
    let mixed = json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "a": { "weights": { "num_bits": 4, "symmetric": true } },
        "b": { "weights": { "num_bits": 4, "symmetric": false } } } });
    for (config, expected) in [
        (
            gptq(&json!({ "checkpoint_format": "marlin" })),
            "\"gptq, in another checkpoint_format than gptq and gptq_v2\"",
        ),
        (awq(&json!({ "version": "gemv_fast" })), "\"awq, in another version than gemm\""),
        (
            with(&json!({ "quantization_config": { "quant_method": "modelopt", "quant_algo": "W4A8_AWQ" } })),
            "\"modelopt, W4A8_AWQ\"",
        ),
        (awq(&json!({ "bits": 8 })), "\"awq, with other than 4 bits\""),
        (with(&json!({ "quantization_config": mixed })), "\"compressed-tensors, with and without zero points\""),
        (gptq(&json!({ "bits": 3 })), "with other than 4 or 8 bits"),
        (gptq(&json!({ "bits": null })), "with other than 4 or 8 bits"),
        (compressed("marlin-24"), "\"compressed-tensors, marlin-24\""),
        (compressed("float-quantized"), "in another type than 8-bit floating point"),
        (fp8(&json!({ "fmt": "e5m2" })), "\"fp8, in another floating-point type than E4M3\""),
        (fp8(&json!({ "weight_block_size": [128] })), "with blocks that are no two sizes"),
        (fp8(&json!({ "weight_block_size": [128, 0] })), "with blocks that are no two sizes"),
    ] {
        let error = error_of(&config, TENSORS);
        assert!(error.contains("config.json: is quantized with") && error.contains(expected), "{error}");
    }
}

#[test]
fn both_spellings_of_e4m3_are_understood() {
    for spelling in ["e4m3", "float8_e4m3fn"] {
        open(&with(&json!({ "quantization_config": { "quant_method": "fp8", "fmt": spelling } })));
    }
}

#[test]
fn packed_tensors_need_scales_that_fit() {
    const CODES: &str = "model.layers.0.mlp.up_proj.qweight";
    const SCALES: &str = "model.layers.0.mlp.up_proj.scales";
    let whole: [TensorSpec<'_>; 2] = [(CODES, "I32", &[8, 12]), (SCALES, "F16", &[2, 12])];
    let open = |tensors: &[TensorSpec<'_>]| Directory::open(folder(&gptq(&json!({})), tensors).path());
    let directory = open(&whole).unwrap();
    let tensor = directory.tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!((&tensor.dims[..], tensor.ggml_type, tensor.bytes()), (&[64, 12][..], 2, 12 * 2 * 18));
    assert!(directory.weight("blk.0.ffn_up.weight").unwrap().to_f32().iter().all(|value| *value == 0.0));
    for broken in [
        vec![whole[0]],
        vec![whole[0], (SCALES, "I32", &[2, 12])],
        vec![whole[0], (SCALES, "F16", &[4, 12])],
        vec![whole[0], (SCALES, "F16", &[2, 11])],
        vec![whole[0], (SCALES, "F16", &[0, 12])],
        vec![(CODES, "F16", &[8, 12]), whole[1]],
        vec![(CODES, "I32", &[8, 12, 1]), whole[1]],
    ] {
        let error = open(&broken).map(drop).unwrap_err().to_string();
        assert!(error.contains(CODES) && error.contains(SCALES) && error.contains("multiple of 32"), "{error}");
    }
}

const PACKED: [TensorSpec<'static>; 3] = [
    ("model.layers.0.mlp.up_proj.qweight", "I32", &[8, 16]),
    ("model.layers.0.mlp.up_proj.scales", "F16", &[2, 16]),
    ("model.layers.0.mlp.up_proj.qzeros", "I32", &[2, 2]),
];

#[test]
fn zero_points_are_those_of_the_groups() {
    let config = gptq(&json!({ "sym": false }));
    let [codes, scales, zeros] = PACKED;
    let directory = Directory::open(folder(&config, &[codes, scales, zeros]).path()).unwrap();
    let weight = directory.weight("blk.0.ffn_up.weight").unwrap();
    assert_eq!((weight.rows, weight.columns, weight.format.block_bytes()), (16, 64, 19));
    // Zeros are stored less 1.
    assert!(weight.bytes().chunks(19).all(|block| block[2] == 1));
    for broken in [
        vec![codes, scales],
        vec![codes, scales, (zeros.0, "I32", &[2, 16])],
        vec![codes, scales, (zeros.0, "F16", &[2, 2])],
    ] {
        let error = error_of(&config, &broken);
        assert!(error.contains(codes.0) && error.contains("zero points in I32 for the same groups"), "{error}");
    }
    let awq_codes: TensorSpec<'_> = (codes.0, "I32", &[64, 2]);
    let directory = Directory::open(folder(&awq(&json!({})), &[awq_codes, scales, zeros]).path()).unwrap();
    let weight = directory.weight("blk.0.ffn_up.weight").unwrap();
    assert!((weight.rows, weight.columns) == (16, 64) && weight.bytes()[2] == 0);
    assert!(error_of(&awq(&json!({})), &PACKED).contains("groups of a multiple of 32"));
}

#[test]
fn signed_bytes_need_scales_that_fit() {
    let weights = json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel" });
    let scheme = json!({ "quant_method": "compressed-tensors", "format": "int-quantized",
                         "config_groups": { "group_0": { "weights": weights } } });
    let config = with(&json!({ "quantization_config": scheme }));
    const CODES: TensorSpec<'_> = ("model.layers.0.mlp.up_proj.weight", "I8", &[16, 64]);
    const SCALES: &str = "model.layers.0.mlp.up_proj.weight_scale";
    let whole = folder(&config, &[CODES, (SCALES, "BF16", &[16, 1])]);
    let weight = Directory::open(whole.path()).unwrap().weight("blk.0.ffn_up.weight").unwrap();
    assert_eq!((weight.rows, weight.columns, weight.format.name()), (16, 64, "Q8_0"));
    for scales in [(SCALES, "BF16", &[8, 1][..]), (SCALES, "BF16", &[16, 3]), (SCALES, "I8", &[16, 1])] {
        assert!(error_of(&config, &[CODES, scales]).contains("types I8 and F16, BF16 or F32"), "{scales:?}");
    }
    // Other matrices may be unpacked.
    let unpacked: TensorSpec<'_> = ("model.layers.0.mlp.up_proj.weight", "BF16", &[16, 64]);
    assert!(Directory::open(folder(&config, &[unpacked]).path()).is_ok());
}

/// Factors are zeros here, too.
#[test]
fn factors_of_4_bit_floating_point_are_above_0() {
    let tensors: [TensorSpec<'_>; 3] = [
        ("model.layers.0.mlp.up_proj.weight_packed", "U8", &[16, 32]),
        ("model.layers.0.mlp.up_proj.weight_scale", "F8_E4M3", &[16, 4]),
        ("model.layers.0.mlp.up_proj.weight_global_scale", "F32", &[1]),
    ];
    let scheme = json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized" });
    let config = with(&json!({ "quantization_config": scheme }));
    let whole = folder(&config, &tensors);
    let path = whole.path().join("model.safetensors");
    let error = Directory::open(whole.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains(tensors[0].0) && error.contains("a factor above 0 of type F32"), "{error}");
    let mut file = std::fs::read(&path).unwrap();
    let factor = file.len() - 4;
    file[factor..].copy_from_slice(&4_f32.to_le_bytes());
    std::fs::write(&path, file).unwrap();
    let directory = Directory::open(whole.path()).unwrap();
    let [weight, factor] = ["weight", "scale"].map(|end| directory.weight(&format!("blk.0.ffn_up.{end}")).unwrap());
    assert_eq!((weight.rows, weight.columns, weight.format.block_bytes()), (16, 64, 36));
    assert_eq!(factor.to_f32(), [0.25]);
}

/// Indices of groups are zeros here: all inputs have the first group.
#[test]
fn groups_in_the_order_of_activations_are_decided_by_their_tensor() {
    const GROUPS: &str = "model.layers.0.mlp.up_proj.g_idx";
    let config = gptq(&json!({ "desc_act": true }));
    let [codes, scales, _] = PACKED;
    let error = error_of(&config, &[codes, scales]);
    assert!(error.contains("lacks the tensor") && error.contains(GROUPS), "{error}");
    let whole = folder(&config, &[codes, scales, (GROUPS, "I32", &[64])]);
    assert_eq!(Directory::open(whole.path()).unwrap().weight("blk.0.ffn_up.weight").unwrap().rows, 16);
    let path = whole.path().join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    *file.iter_mut().rev().nth(3).unwrap() = 1;
    std::fs::write(&path, file).unwrap();
    let error = Directory::open(whole.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains(GROUPS) && error.contains("each group a multiple of 32 inputs"), "{error}");
    assert!(error_of(&config, &[codes, scales, (GROUPS, "I32", &[32])]).contains(GROUPS));
}

/// Every second input has the second group. The order of a projection becomes a tensor; experts cannot have one.
#[test]
fn inputs_in_the_order_of_activations_are_supported_for_projections() {
    let ordered = |module: &str, model_type: &str| {
        let names = ["qweight", "scales", "g_idx"].map(|part| format!("{module}.{part}"));
        let tensors: Vec<TensorSpec<'_>> =
            vec![(&names[0], "I32", &[8, 16]), (&names[1], "F16", &[2, 16]), (&names[2], "I32", &[64])];
        let mut config = gptq(&json!({ "desc_act": true }));
        config["model_type"] = model_type.into();
        let folder = folder(&config, &tensors);
        let path = folder.path().join("model.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        let start = file.len() - 64 * 4;
        file[start..].chunks_exact_mut(8).for_each(|pair| pair[4] = 1);
        std::fs::write(&path, file).unwrap();
        Directory::open(folder.path())
    };
    let directory = ordered("model.layers.0.mlp.up_proj", "llama").unwrap();
    let order = directory.weight("blk.0.ffn_up.input_order").unwrap().to_f32();
    assert_eq!((order.len(), &order[..3], &order[32..35]), (64, &[0.0, 2.0, 4.0][..], &[1.0, 3.0, 5.0][..]));
    let error = ordered("model.layers.0.mlp.experts.0.up_proj", "qwen3_moe").map(drop).unwrap_err().to_string();
    assert!(error.contains("order of activations"), "{error}");
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let up = |expert| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    let (first, third) = (up(0), up(2));
    let unknown = "model.layers.0.mlp.extra.weight";
    let other = "model.language_model.embed_tokens.weight";
    let cases: [(&[TensorSpec<'_>], &str); 8] = [
        (&[(unknown, "F32", &[1])], "tensor \"model.layers.0.mlp.extra.weight\" is not known for model_type \"llama\""),
        (&[(QUERY, "I8", &[8, 8])], "has the type I8"),
        (&[(QUERY, "F8_E4M3", &[8, 8])], "has the type F8_E4M3"),
        (&[(QUERY, "F32", &[6, 8])], "has the shape [6, 8], which is not possible"),
        (&[(QUERY, "F32", &[0, 8])], "has the shape [0, 8]"),
        (&[(&first, "F32", &[4, 8]), (&third, "F32", &[4, 8])], "lacks expert 1 of the tensors"),
        (&[(&first, "F32", &[4, 8]), (&up(1), "F32", &[4, 7])], "has the shape [4, 7]"),
        (&[(TENSORS[0].0, "F32", &[1]), (other, "F32", &[1])], "hold the same weights"),
    ];
    for (tensors, expected) in cases {
        let error = error_of(&config(), tensors);
        assert!(error.contains("model.safetensors: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn files_that_are_missing_or_damaged_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let error = checkpoint::open(empty.path()).map(drop).unwrap_err().to_string();
    assert!(error.ends_with("is not a model: it has no config.json"), "{error}");
    for name in ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.json"] {
        let folder = folder(&config(), TENSORS);
        std::fs::write(folder.path().join(name), "{").unwrap();
        let error = Directory::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}: is not valid JSON")), "{error}");
    }
    let folder = folder(&config(), TENSORS);
    std::fs::write(folder.path().join("chat_template.jinja"), [0xff]).unwrap();
    let error = Directory::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja: is not valid UTF-8"), "{error}");
}

#[test]
fn a_model_of_sentencepiece_is_the_tokenizer_where_there_is_no_other() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizer");
    let folder = folder(&config(), TENSORS);
    let write = |name: &str, content: Json| std::fs::write(folder.path().join(name), content.to_string()).unwrap();
    let open = || Directory::open(folder.path()).unwrap();
    assert_eq!(open().text().memory_bytes().unwrap(), 0);
    std::fs::copy(fixtures.join("bpe-plain.model"), folder.path().join("tokenizer.model")).unwrap();
    let plain = open().text().tokenizer().unwrap();
    let size = u32::try_from(plain.vocab_size()).unwrap();
    assert_eq!((plain.bos(), plain.eos(), plain.added_bos()), (Some(1), Some(2), Some(1)));
    assert!(open().text().memory_bytes().unwrap() > 10_000);
    write("added_tokens.json", json!({ "<call>": size, "<more>": size + 2 }));
    let decoder = json!({ "1": { "content": "<s>", "special": true }, format!("{}", size + 1): { "content": "<end>", "special": true } });
    let stated =
        json!({ "added_tokens_decoder": decoder, "add_bos_token": false, "add_eos_token": true, "eos_token": "<end>" });
    write("tokenizer_config.json", stated);
    write("special_tokens_map.json", json!({ "additional_special_tokens": ["<more>"] }));
    let added = open().text().tokenizer().unwrap();
    assert_eq!((added.vocab_size(), added.eos(), added.added_bos()), (size as usize + 3, Some(size + 1), None));
    let special = [size, size + 1, size + 2].map(|token| added.is_special(token));
    assert_eq!(special, [false, true, true]);
    let light = plain.encode("light", false, false).unwrap();
    let expected = [&light[..], &[size], &light, &[size + 2, size + 1]].concat();
    assert_eq!(added.encode("light<call>light<more>", true, true).unwrap(), expected);
    write("added_tokens.json", json!({ "<call>": -1 }));
    let error = Directory::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("added_tokens.json: key \"<call>\""), "{error}");
    write("added_tokens.json", json!({ "<call>": 4_000_000_000u32 }));
    assert!(open().text().tokenizer().is_err());
    write("tokenizer.model", json!("IQ== 0"));
    write("added_tokens.json", json!({}));
    let error = open().text().memory_bytes().unwrap_err().to_string();
    assert!(error.contains("tokenizer.model: not a usable model of SentencePiece"), "{error}");
}

#[test]
fn a_tekken_json_is_the_tokenizer_where_there_is_no_tokenizer_json() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizer");
    let folder = folder(&config(), TENSORS);
    std::fs::copy(fixtures.join("tekken.json"), folder.path().join("tekken.json")).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    assert!(directory.text().memory_bytes().unwrap() > 100_000);
    let tokenizer = directory.text().tokenizer().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.encode("</s>", true, true).unwrap()), (Some(1), vec![1, 2]));
    std::fs::write(folder.path().join("tekken.json"), "{}").unwrap();
    let error = Directory::open(folder.path()).unwrap().text().tokenizer().map(drop).unwrap_err().to_string();
    assert!(error.contains("tekken.json: not a usable tekken.json: missing field"), "{error}");
    std::fs::copy(fixtures.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    assert!(Directory::open(folder.path()).unwrap().text().tokenizer().is_ok());
}

#[test]
fn templates_are_found_in_every_file() {
    let template = |files: &[(&str, Json)]| {
        let folder = folder(&config(), TENSORS);
        for (name, content) in files {
            let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let directory = Directory::open(folder.path()).unwrap();
        ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"]
            .map(|key| directory.optional_str(key).unwrap().map(str::to_owned))
    };
    let [own, stated] =
        [("chat_template.jinja", json!("own")), ("tokenizer_config.json", json!({ "chat_template": "b" }))];
    assert_eq!(template(&[]), [None, None]);
    assert_eq!(template(std::slice::from_ref(&stated)), [Some("b".to_owned()), None]);
    assert_eq!(template(&[stated, own]), [Some("own".to_owned()), None]);
    let list =
        json!({ "chat_template": [{ "name": "default", "template": "d" }, { "name": "tool_use", "template": "t" }] });
    assert_eq!(template(&[("tokenizer_config.json", list)]), [Some("d".to_owned()), Some("t".to_owned())]);
}

#[test]
fn the_tokenizer_ends_where_the_directory_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hugging_face/llama-shards");
    let checkpoint = checkpoint::open(&path).unwrap();
    let tokenizer = checkpoint.tokenizer(&Default::default()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_of_generation()), (Some(1), Some(2), &[0, 2][..]));
    assert_eq!(tokenizer.vocab_size(), 512);
    assert!(checkpoint.str("tokenizer.chat_template").unwrap().contains("<|im_start|>"));
}
