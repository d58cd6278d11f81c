//! The families whose directories load: which architecture they are in GGUF files, and how their tensors differ from
//! the common rules. A family is data.

use super::rules::{Heads, Op, Rule};

/// A family of models as directories store it.
pub(super) struct Family {
    /// The values of `model_type` in `config.json`, for models of text only and for those that also see or hear.
    pub model_types: &'static [&'static str],
    /// Its `general.architecture` in GGUF files.
    pub architecture: &'static str,
    /// The activations that the architecture computes, as configs name them.
    pub activations: &'static [&'static str],
    /// Whether weights of norms are stored without the 1 that is added to them.
    pub norms_lack_one: bool,
    /// Rules that come before the common ones.
    pub names: &'static [&'static [Rule]],
    /// Names of values in its configs that most families have under the first name.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Values that published configs leave out.
    pub defaults: &'static [(&'static str, f64)],
    /// The key of the config that is true for this family and for no other with the same `model_type`.
    pub flag: Option<&'static str>,
    /// The row of the first position in the table of positions.
    pub first_position: usize,
}

const SILU: &[&str] = &["silu", "swish"];
const RELU2: &[&str] = &["relu2"];
const GELU_TANH: &[&str] = &["gelu_pytorch_tanh", "gelu_new", "gelu_fast"];

const GELU: &[&str] = &["gelu"];

/// A family without rules of its own.
pub(super) const PLAIN: Family = Family {
    model_types: &[],
    architecture: "",
    activations: SILU,
    norms_lack_one: false,
    names: &[],
    aliases: &[],
    defaults: &[],
    flag: None,
    first_position: 0,
};

/// Queries and keys of architectures that rotate neighbouring values.
const ROTARY: &[Rule] = &[
    ("self_attn.q_proj", "attn_q", &[Op::RotaryRows(Heads::Query)]),
    ("self_attn.k_proj", "attn_k", &[Op::RotaryRows(Heads::Key)]),
];

/// The norm between mixer and feed-forward under the name of a norm after the mixer.
const NORM_AFTER_MIXER: &[Rule] = &[("post_attention_layernorm", "post_attention_norm", &[Op::Norm])];

const MIXTRAL: &[Rule] = &[
    ("block_sparse_moe.gate", "ffn_gate_inp", &[]),
    ("block_sparse_moe.experts.*.w1.weight", "ffn_gate_exps.weight", &[]),
    ("block_sparse_moe.experts.*.w2.weight", "ffn_down_exps.weight", &[]),
    ("block_sparse_moe.experts.*.w3.weight", "ffn_up_exps.weight", &[]),
];

const GPT_OSS: &[Rule] = &[
    ("mlp.router", "ffn_gate_inp", &[]),
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", &[Op::EverySecond { first: 0, axis: 0 }, Op::Transpose]),
    ("mlp.experts.gate_up_proj", "ffn_up_exps.weight", &[Op::EverySecond { first: 1, axis: 0 }, Op::Transpose]),
    ("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", &[Op::EverySecond { first: 0, axis: 0 }]),
    ("mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", &[Op::EverySecond { first: 1, axis: 0 }]),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", &[Op::Transpose]),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias", &[]),
    ("mlp.experts.gate_up_proj_blocks", "ffn_gate_exps.weight", &[Op::EverySecond { first: 0, axis: 1 }]),
    ("mlp.experts.gate_up_proj_blocks", "ffn_up_exps.weight", &[Op::EverySecond { first: 1, axis: 1 }]),
    ("mlp.experts.down_proj_blocks", "ffn_down_exps.weight", &[]),
];

const GEMMA4: &[Rule] = &[
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight", &[]),
    ("experts.down_proj", "ffn_down_exps.weight", &[]),
    ("router.proj", "ffn_gate_inp", &[]),
    ("router.scale", "ffn_gate_inp.scale", &[]),
    ("router.per_expert_scale", "ffn_down_exps.scale", &[]),
    ("layer_scalar", "layer_output_scale.weight", &[]),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2", &[]),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1", &[]),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2", &[]),
    ("per_layer_input_gate", "inp_gate", &[]),
    ("per_layer_projection", "proj", &[]),
    ("post_per_layer_input_norm", "post_norm", &[]),
];

/// Value heads along the rows of a tensor.
const VALUE_ROWS: Op = Op::ValueHeads { axis: 0, after_keys: false };
/// Queries and keys, then value heads, along the rows of a tensor.
const MIXED_ROWS: Op = Op::ValueHeads { axis: 0, after_keys: true };

const QWEN3_5: &[Rule] = &[
    ("linear_attn.A_log", "ssm_a", &[Op::NegExp, VALUE_ROWS]),
    ("linear_attn.dt_bias", "ssm_dt.bias", &[VALUE_ROWS]),
    ("linear_attn.conv1d", "ssm_conv1d", &[MIXED_ROWS]),
    ("linear_attn.in_proj_qkv", "attn_qkv", &[MIXED_ROWS]),
    ("linear_attn.in_proj_z", "attn_gate", &[VALUE_ROWS]),
    ("linear_attn.in_proj_a", "ssm_alpha", &[VALUE_ROWS]),
    ("linear_attn.in_proj_b", "ssm_beta", &[VALUE_ROWS]),
    ("linear_attn.norm", "ssm_norm", &[]),
    ("linear_attn.out_proj", "ssm_out", &[Op::ValueHeads { axis: 1, after_keys: false }]),
];

/// The configs of models that also see have only what differs from the model of 4 billion weights.
const GEMMA3_DEFAULTS: &[(&str, f64)] = &[
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("rms_norm_eps", 1e-6),
    ("max_position_embeddings", 131_072.0),
    ("query_pre_attn_scalar", 256.0),
    ("rope_theta", 1_000_000.0),
    ("rope_local_base_freq", 10_000.0),
    ("sliding_window_pattern", 6.0),
];

const BERT: &[Rule] = &[
    ("attention.self.query", "attn_q", &[]),
    ("attention.self.key", "attn_k", &[]),
    ("attention.self.value", "attn_v", &[]),
    ("attention.output.dense", "attn_output", &[]),
    ("attention.output.LayerNorm", "attn_output_norm", &[]),
    ("intermediate.dense", "ffn_up", &[]),
    ("output.dense", "ffn_down", &[]),
    ("output.LayerNorm", "layer_output_norm", &[]),
];

const NOMIC_BERT: &[Rule] = &[
    ("attn.Wqkv", "attn_qkv", &[]),
    ("attn.out_proj", "attn_output", &[]),
    ("mlp.fc11", "ffn_up", &[]),
    ("mlp.fc12", "ffn_gate", &[]),
    ("mlp.fc2", "ffn_down", &[]),
    ("norm1", "attn_output_norm", &[]),
    ("norm2", "layer_output_norm", &[]),
];

const GPT2: &[Rule] = &[
    ("ln_1", "attn_norm", &[]),
    ("ln_2", "ffn_norm", &[]),
    ("attn.c_attn.weight", "attn_qkv.weight", &[Op::Transpose]),
    ("attn.c_attn.bias", "attn_qkv.bias", &[]),
    ("attn.c_proj.weight", "attn_output.weight", &[Op::Transpose]),
    ("attn.c_proj.bias", "attn_output.bias", &[]),
    ("mlp.c_fc.weight", "ffn_up.weight", &[Op::Transpose]),
    ("mlp.c_fc.bias", "ffn_up.bias", &[]),
    ("mlp.c_proj.weight", "ffn_down.weight", &[Op::Transpose]),
    ("mlp.c_proj.bias", "ffn_down.bias", &[]),
];

const STARCODER: &[Rule] = &[
    ("ln_1", "attn_norm", &[]),
    ("ln_2", "ffn_norm", &[]),
    ("attn.c_attn", "attn_qkv", &[]),
    ("attn.c_proj", "attn_output", &[]),
    ("mlp.c_fc", "ffn_up", &[]),
    ("mlp.c_proj", "ffn_down", &[]),
];

/// Where configs of GPT-2 and its successors have the sizes.
const GPT2_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
    ("hidden_act", "activation_function"),
];

const STARCODER2: &[Rule] = &[("mlp.c_fc", "ffn_up", &[]), ("mlp.c_proj", "ffn_down", &[])];

const MINIMAX: &[Rule] = &[("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", &[])];

const HUNYUAN3: &[Rule] = &[
    ("mlp.router.gate", "ffn_gate_inp", &[]),
    ("mlp.expert_bias", "exp_probs_b.bias", &[]),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp", &[]),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp", &[]),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp", &[]),
];

const AFMOE: &[Rule] = &[
    ("self_attn.gate_proj", "attn_gate", &[]),
    ("mlp.router.gate", "ffn_gate_inp", &[]),
    ("mlp.expert_bias", "exp_probs_b.bias", &[]),
    ("pre_mlp_layernorm", "ffn_norm", &[]),
    ("post_mlp_layernorm", "post_ffw_norm", &[]),
];

const GLM4: &[Rule] =
    &[("post_self_attn_layernorm", "post_attention_norm", &[]), ("post_mlp_layernorm", "post_ffw_norm", &[])];

/// Every family.
pub(super) const FAMILIES: &[Family] = &[
    Family { model_types: &["llama"], architecture: "llama", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["mistral"], architecture: "llama", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["ministral3"], architecture: "mistral3", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["mixtral"], architecture: "llama", names: &[ROTARY, MIXTRAL], ..PLAIN },
    Family { model_types: &["qwen2"], architecture: "qwen2", ..PLAIN },
    Family { model_types: &["qwen2_moe"], architecture: "qwen2moe", ..PLAIN },
    Family { model_types: &["qwen3"], architecture: "qwen3", ..PLAIN },
    Family { model_types: &["qwen3_moe"], architecture: "qwen3moe", ..PLAIN },
    Family {
        model_types: &["gemma"],
        architecture: "gemma",
        activations: &["gelu", "gelu_pytorch_tanh"],
        norms_lack_one: true,
        ..PLAIN
    },
    Family {
        model_types: &["gemma2"],
        architecture: "gemma2",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        ..PLAIN
    },
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        defaults: GEMMA3_DEFAULTS,
        ..PLAIN
    },
    Family {
        model_types: &["gemma3_text"],
        architecture: "gemma-embedding",
        activations: GELU_TANH,
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER],
        defaults: GEMMA3_DEFAULTS,
        flag: Some("use_bidirectional_attention"),
        ..PLAIN
    },
    Family { model_types: &["bert"], architecture: "bert", activations: GELU, names: &[BERT], ..PLAIN },
    Family { model_types: &["nomic_bert"], architecture: "nomic-bert", names: &[NOMIC_BERT], ..PLAIN },
    Family {
        model_types: &["roberta", "xlm-roberta"],
        architecture: "bert",
        activations: GELU,
        names: &[BERT],
        // Positions are counted from the number of the padding token, which is 1 in every published model.
        first_position: 2,
        ..PLAIN
    },
    Family {
        model_types: &["gemma4_text", "gemma4"],
        architecture: "gemma4",
        activations: GELU_TANH,
        names: &[NORM_AFTER_MIXER, GEMMA4],
        ..PLAIN
    },
    Family { model_types: &["phi3"], architecture: "phi3", ..PLAIN },
    Family { model_types: &["smollm3"], architecture: "smollm3", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["olmo2", "olmo3"], architecture: "olmo2", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["olmoe"], architecture: "olmoe", ..PLAIN },
    Family { model_types: &["cohere2"], architecture: "cohere2", ..PLAIN },
    Family { model_types: &["ernie4_5"], architecture: "ernie4_5", ..PLAIN },
    Family { model_types: &["minimax_m2"], architecture: "minimax-m2", names: &[MIXTRAL, MINIMAX], ..PLAIN },
    Family { model_types: &["arcee"], architecture: "arcee", activations: RELU2, names: &[ROTARY], ..PLAIN },
    Family { model_types: &["dots1"], architecture: "dots1", ..PLAIN },
    Family { model_types: &["exaone_moe"], architecture: "exaone-moe", ..PLAIN },
    Family {
        model_types: &["gpt2"],
        architecture: "gpt2",
        activations: GELU_TANH,
        names: &[GPT2],
        aliases: GPT2_ALIASES,
        ..PLAIN
    },
    Family {
        model_types: &["gpt_bigcode"],
        architecture: "starcoder",
        activations: GELU_TANH,
        names: &[STARCODER],
        aliases: GPT2_ALIASES,
        defaults: &[("num_key_value_heads", 1.0)],
        ..PLAIN
    },
    Family {
        model_types: &["starcoder2"],
        architecture: "starcoder2",
        activations: GELU_TANH,
        names: &[STARCODER2],
        ..PLAIN
    },
    Family { model_types: &["nemotron"], architecture: "nemotron", activations: RELU2, norms_lack_one: true, ..PLAIN },
    Family { model_types: &["granite"], architecture: "granite", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["granite_swa"], architecture: "granite_swa", names: &[ROTARY], ..PLAIN },
    Family { model_types: &["mellum"], architecture: "mellum", ..PLAIN },
    Family { model_types: &["hy_v3"], architecture: "hy_v3", names: &[HUNYUAN3], ..PLAIN },
    Family { model_types: &["afmoe"], architecture: "afmoe", names: &[NORM_AFTER_MIXER, AFMOE], ..PLAIN },
    Family { model_types: &["exaone4"], architecture: "exaone4", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["seed_oss"], architecture: "seed_oss", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["glm4"], architecture: "glm4", names: &[GLM4], ..PLAIN },
    Family { model_types: &["glm4_moe"], architecture: "glm4moe", names: &[NORM_AFTER_MIXER], ..PLAIN },
    Family { model_types: &["gpt_oss"], architecture: "gpt-oss", names: &[NORM_AFTER_MIXER, GPT_OSS], ..PLAIN },
    Family {
        model_types: &["qwen3_5_text", "qwen3_5"],
        architecture: "qwen35",
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER, QWEN3_5],
        ..PLAIN
    },
    Family {
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        architecture: "qwen35moe",
        norms_lack_one: true,
        names: &[NORM_AFTER_MIXER, QWEN3_5],
        ..PLAIN
    },
];

/// The family with this `model_type`. `is_set` says which keys of the config are true.
pub(super) fn of_type(model_type: &str, is_set: impl Fn(&str) -> bool) -> Option<&'static Family> {
    let of_type = |family: &&Family| family.model_types.contains(&model_type);
    let flagged = FAMILIES.iter().filter(of_type).find(|family| family.flag.is_some_and(&is_set));
    flagged.or_else(|| FAMILIES.iter().filter(of_type).find(|family| family.flag.is_none()))
}

/// All values of `model_type`, for people.
pub(super) fn known() -> String {
    let plain = FAMILIES.iter().filter(|family| family.flag.is_none());
    plain.flat_map(|family| family.model_types).copied().collect::<Vec<_>>().join(", ")
}
