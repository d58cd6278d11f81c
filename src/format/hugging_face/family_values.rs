//! The names and the defaults that configs of some families have for values, what they must be, and texts of families.

use super::config::BEFORE_ROW;
use super::rules::Literal::{self, Bool, Number, Text};

/// Rows of audio, the text before it, and the start of what is heard.
pub(super) const WHISPER_TEMPLATE: &str = "\
{%- for message in messages %}{% for part in message.content if part.type == 'audio' %}<|startofaudio|>{% endfor %}{% endfor %}\
{%- for message in messages %}{% for part in message.content if part.type == 'text' %}<|startofprev|> {{ part.text | trim }}\
{%- endfor %}{% endfor %}{% if add_generation_prompt %}<|startoftranscript|>{% endif %}";

/// Where configs of Whisper have the sizes of the decoder.
pub(super) const WHISPER_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("num_attention_heads", "decoder_attention_heads"),
    ("num_key_value_heads", "decoder_attention_heads"),
    ("intermediate_size", "decoder_ffn_dim"),
    ("hidden_act", "activation_function"),
];

/// Where configs of GPT-2 and its successors have the sizes.
pub(super) const GPT2_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
    ("hidden_act", "activation_function"),
];

/// Where published configs of Nomic BERT have the sizes.
pub(super) const NOMIC_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "max_trained_positions"),
    ("intermediate_size", "n_inner"),
    ("hidden_act", "activation_function"),
    ("rope_theta", "rotary_emb_base"),
];

pub(super) const NOMIC_REQUIRES: &[(&str, &[Literal])] = &[
    ("causal", &[Bool(false)]),
    ("prenorm", &[Bool(false)]),
    ("parallel_block", &[Bool(false)]),
    ("rotary_emb_fraction", &[Number(1.0)]),
    ("rotary_emb_interleaved", &[Bool(false)]),
    ("expert_choice_router", &[Bool(false)]),
    ("moe_normalize_expert_weights", &[Bool(false)]),
    ("num_shared_experts", &[Number(0.0)]),
];

/// Older configs of ModernBERT state windows and bases of frequencies under names of their own. Of both epsilons this one counts.
pub(super) const MODERN_BERT_ALIASES: &[(&str, &str)] = &[
    ("layer_norm_eps", "norm_eps"),
    ("sliding_window", "local_attention"),
    ("sliding_window_pattern", "global_attn_every_n_layers"),
    ("rope_theta", "global_rope_theta"),
    ("rope_local_base_freq", "local_rope_theta"),
];

pub(super) const MODERN_BERT_DEFAULTS: &[(&str, Literal)] = &[
    ("layer_norm_eps", Number(1e-5)),
    ("sliding_window", Number(128.0)),
    ("sliding_window_pattern", Number(3.0)),
    ("rope_theta", Number(160_000.0)),
    ("rope_local_base_freq", Number(10_000.0)),
    ("classifier_pooling", Text("cls")),
];

/// The prompt of Qwen3-Reranker.
pub(super) const QWEN3_RERANKER: &str = "\
<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n\
<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

pub(super) const KIMI_LINEAR_ALIASES: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"),
    ("linear_head_dim", "linear_attn_config.head_dim"),
    ("scoring_func", "moe_router_activation_func"),
];

pub(super) const KIMI_3_ALIASES: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"),
    ("linear_head_dim", "linear_attn_config.head_dim"),
    ("linear_lower_bound", "linear_attn_config.gate_lower_bound"),
    ("full_attn_layers", "linear_attn_config.full_attn_layers"),
    ("scoring_func", "moe_router_activation_func"),
];

pub(super) const KIMI_3_REQUIRES: &[(&str, &[Literal])] =
    &[("mla_use_nope", &[Bool(true)]), ("mla_use_output_gate", &[Bool(true)])];

pub(super) const GLM5_NEXT_ALIASES: &[(&str, &str)] = &[
    ("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"),
    ("linear_head_dim", "linear_attn_config.head_dim"),
    ("linear_lower_bound", "linear_attn_config.gate_lower_bound"),
    ("swiglu_limits", "swiglu_limit"),
    ("swiglu_limits_shared", "swiglu_limit"),
];

/// Configs name the epsilon as that of layer norms.
pub(super) const LFM_ALIASES: &[(&str, &str)] = &[("rms_norm_eps", "norm_eps")];

/// In the config `head_dim` is the length of the heads of the delta rule. transformers saves that of the rotated section.
pub(super) const LING3_ALIASES: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("linear_conv_kernel_dim", "short_conv_kernel_size"),
    ("kda_head_dim", "head_dim"),
    ("scoring_func", "score_function"),
    ("swiglu_limits", "expert_swiglu_limit_list"),
    ("swiglu_limits_shared", "share_expert_swiglu_limit_list"),
];

pub(super) const LING3_DEFAULTS: &[(&str, Literal)] =
    &[("scoring_func", Text("sigmoid")), ("kda_lower_bound", Number(-5.0))];

pub(super) const LING3_REQUIRES: &[(&str, &[Literal])] = &[
    ("kda_safe_gate", &[Bool(true)]),
    ("no_kda_lora", &[Bool(true)]),
    ("gated_attention_proj_granularity_type", &[Text("head_wise")]),
];

/// Published configs have the sizes of the indexer in an object. The width of experts comes first.
pub(super) const MINIMAX_3_ALIASES: &[(&str, &str)] = &[
    ("moe_intermediate_size", "intermediate_size"),
    ("intermediate_size", "dense_intermediate_size"),
    ("index_n_heads", "sparse_attention_config.sparse_num_index_heads"),
    ("index_head_dim", "sparse_attention_config.sparse_index_dim"),
    ("index_topk_blocks", "sparse_attention_config.sparse_topk_blocks"),
    ("index_block_size", "sparse_attention_config.sparse_block_size"),
    ("index_local_blocks", "sparse_attention_config.sparse_local_block"),
    ("index_init_blocks", "sparse_attention_config.sparse_init_block"),
    ("index_score_type", "sparse_attention_config.sparse_score_type"),
];

/// What configs that state only differences leave out: the values of the published model.
pub(super) const MINIMAX_3_DEFAULTS: &[(&str, Literal)] = &[
    ("routed_scaling_factor", Number(2.0)),
    ("index_n_heads", Number(4.0)),
    ("index_head_dim", Number(128.0)),
    ("index_topk_blocks", Number(16.0)),
    ("index_block_size", Number(128.0)),
    ("index_local_blocks", Number(1.0)),
];

pub(super) const MINIMAX_3_REQUIRES: &[(&str, &[Literal])] = &[
    ("swiglu_alpha", &[Number(1.702)]),
    ("swiglu_beta", &[Number(1.0)]),
    ("swiglu_limit", &[Number(7.0)]),
    ("use_gemma_norm", &[Bool(true)]),
    ("use_qk_norm", &[Bool(true)]),
    ("qk_norm_type", &[Text("per_head")]),
    ("attention_output_gate", &[Bool(false)]),
    ("index_init_blocks", &[Number(0.0)]),
    ("index_score_type", &[Text("max")]),
];

pub(super) const MPT_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("max_position_embeddings", "max_seq_len"),
    ("max_alibi_bias", "attn_config.alibi_bias_max"),
    ("has_alibi", "attn_config.alibi"),
    ("qkv_limit", "attn_config.clip_qkv"),
    ("qk_ln", "attn_config.qk_ln"),
    ("prefix_lm", "attn_config.prefix_lm"),
];

pub(super) const MPT_REQUIRES: &[(&str, &[Literal])] = &[
    ("has_alibi", &[Bool(true)]),
    ("qk_ln", &[Bool(false)]),
    ("prefix_lm", &[Bool(false)]),
    ("no_bias", &[Bool(true)]),
];

/// Sizes of a state space under the names that models with other layers too have for them. Models without attention have no heads.
pub(super) const MAMBA_ALIASES: &[(&str, &str)] = &[
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_d_state", "state_size"),
    ("mamba_inner_size", "intermediate_size"),
    ("mamba_dt_rank", "time_step_rank"),
    ("mamba_norms_eps", "mixer_rms_eps"),
    ("rms_norm_eps", "layer_norm_epsilon"),
];

pub(super) const MAMBA2_ALIASES: &[(&str, &str)] = &[
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_d_state", "state_size"),
    ("mamba_n_groups", "n_groups"),
    ("mamba_n_heads", "num_heads"),
    ("mamba_d_head", "head_dim"),
    ("rms_norm_eps", "layer_norm_epsilon"),
];

pub(super) const RELU2: &[&str] = &["relu2"];
pub(super) const GELU_TANH: &[&str] = &["gelu_pytorch_tanh", "gelu_new", "gelu_fast"];

pub(super) const GELU: &[&str] = &["gelu"];

/// Half of a head rotates where a config does not say how much of it.
pub(super) const ROTATES_HALF: &[(&str, Literal)] = &[("partial_rotary_factor", Number(0.5))];

/// A quarter of a head rotates where a config does not say how much of it.
pub(super) const ROTATES_QUARTER: &[(&str, Literal)] = &[("partial_rotary_factor", Number(0.25))];

/// The configs of models that also see have only what differs from the model of 4 billion weights.
pub(super) const GEMMA3_DEFAULTS: &[(&str, Literal)] = &[
    ("num_attention_heads", Number(8.0)),
    ("num_key_value_heads", Number(4.0)),
    ("head_dim", Number(256.0)),
    ("rms_norm_eps", Number(1e-6)),
    ("max_position_embeddings", Number(131_072.0)),
    ("query_pre_attn_scalar", Number(256.0)),
    ("rope_theta", Number(1_000_000.0)),
    ("rope_local_base_freq", Number(10_000.0)),
    ("sliding_window_pattern", Number(6.0)),
];

pub(super) const CHATGLM_ALIASES: &[(&str, &str)] = &[
    ("num_hidden_layers", "num_layers"),
    ("max_position_embeddings", "seq_length"),
    ("vocab_size", "padded_vocab_size"),
    ("intermediate_size", "ffn_hidden_size"),
    ("num_key_value_heads", "multi_query_group_num"),
    ("head_dim", "kv_channels"),
    ("rms_norm_eps", "layernorm_epsilon"),
];

/// Pairs of neighbours rotate in the first half of a head.
pub(super) const CHATGLM_DEFAULTS: &[(&str, Literal)] =
    &[("rope_theta", Number(10_000.0)), ("partial_rotary_factor", Number(0.5))];

pub(super) const CHATGLM_REQUIRES: &[(&str, &[Literal])] = &[
    ("multi_query_attention", &[Bool(true)]),
    ("rmsnorm", &[Bool(true)]),
    ("post_layer_norm", &[Bool(true)]),
    ("apply_residual_connection_post_layernorm", &[Bool(false)]),
    ("add_bias_linear", &[Bool(false)]),
    ("original_rope", &[Bool(true)]),
];

/// Latent attention as the architecture computes it: pairs of neighbours rotate.
pub(super) const LATENT_REQUIRES: &[(&str, &[Literal])] =
    &[ROTATES_NEIGHBOURS, ("topk_method", &[Text("greedy"), Text("group_limited_greedy"), Text("noaux_tc")])];

/// Published configs of Cohere 2 name the rotation of neighbours.
pub(super) const COHERE2_POSITIONS: (&str, &[Literal]) = ("position_embedding_type", &[Text("rope_gptj")]);

pub(super) const COHERE2_REQUIRES: &[(&str, &[Literal])] =
    &[COHERE2_POSITIONS, ("rotary_pct", &[Number(1.0)]), ("order_of_interleaved_layers", &[Text("local_attn_first")])];

pub(super) const COHERE2_MOE_REQUIRES: &[(&str, &[Literal])] =
    &[COHERE2_POSITIONS, ("rotary_pct", &[Number(1.0)]), ("shared_expert_combination_strategy", &[Text("average")])];

pub(super) const ROTATES_NEIGHBOURS: (&str, &[Literal]) = ("rope_interleave", &[Bool(true)]);

/// Where configs of Nemotron H have values of a state space.
pub(super) const NEMOTRON_H_ALIASES: &[(&str, &str)] = &[
    ("hidden_act", "mlp_hidden_act"),
    ("head_dim", "attention_head_dim"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_d_state", "ssm_state_size"),
    ("mamba_n_groups", "n_groups"),
    ("mamba_n_heads", "mamba_num_heads"),
    ("mamba_d_head", "mamba_head_dim"),
];

/// Its attention does not rotate.
pub(super) const NEMOTRON_H_DEFAULTS: &[(&str, Literal)] = &[("position_embedding_type", Text("nope"))];

pub(super) const NEMOTRON_H_REQUIRES: &[(&str, &[Literal])] = &[("position_embedding_type", &[Text("nope")])];

/// Where configs of Step 3.5 have the usual values. Its layers with a window have their own heads.
pub(super) const STEP_ALIASES: &[(&str, &str)] = &[
    ("num_key_value_heads", "num_attention_groups"),
    ("swa_num_attention_heads", "attention_other_setting.num_attention_heads"),
    ("swa_num_attention_heads", "num_sliding_attention_heads"),
    ("swa_num_key_value_heads", "attention_other_setting.num_attention_groups"),
    ("scoring_func", "moe_router_activation"),
];

pub(super) const STEP_REQUIRES: &[(&str, &[Literal])] = &[
    ("use_head_wise_attn_gate", &[Bool(true)]),
    ("gating", &[Bool(true), Text("per-head")]),
    ("zero_centered", &[Bool(true)]),
];

pub(super) const MIMO_ALIASES: &[(&str, &str)] = &[
    ("rms_norm_eps", "layernorm_epsilon"),
    ("rope_local_base_freq", "swa_rope_theta"),
    (BEFORE_ROW, "sliding_window_size"),
];

pub(super) const NEOX_ALIASES: &[(&str, &str)] =
    &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")];

/// Smaller models have one head of keys, whatever the config says.
pub(super) const FALCON_ALIASES: &[(&str, &str)] = &[
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "ffn_hidden_size"),
    ("hidden_act", "activation"),
];

pub(super) const LARGE_FALCON_ALIASES: &[(&str, &str)] = &[
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("num_key_value_heads", "n_head_kv"),
    ("num_key_value_heads", "num_kv_heads"),
    ("intermediate_size", "ffn_hidden_size"),
    ("hidden_act", "activation"),
];

pub(super) const FALCON_DEFAULTS: &[(&str, Literal)] = &[
    ("max_position_embeddings", Number(2048.0)),
    ("layer_norm_epsilon", Number(1e-5)),
    ("num_key_value_heads", Number(1.0)),
];

pub(super) const FALCON_REQUIRES: &[(&str, &[Literal])] =
    &[("alibi", &[Bool(false)]), ("multi_query", &[Bool(true)]), ("parallel_attn", &[Bool(true)])];

/// The factors of its matrices.
pub(super) const FALCON_H1_FACTORS: &[(&str, &[&str])] = &[
    ("attn_q", &["attention_in_multiplier"]),
    ("attn_k", &["attention_in_multiplier", "key_multiplier"]),
    ("attn_v", &["attention_in_multiplier"]),
    ("attn_output", &["attention_out_multiplier"]),
    ("ssm_out", &["ssm_out_multiplier"]),
    ("ffn_gate", &["mlp_multipliers.0"]),
    ("ffn_down", &["mlp_multipliers.1"]),
];

/// The parameters of xIELU.
pub(super) const XIELU: &[(&str, &str)] = &[
    ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
    ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
    ("mlp.act_fn.beta", "xielu.beta"),
    ("mlp.act_fn.eps", "xielu.eps"),
];

pub(super) const COHERE_MOE_ALIASES: &[(&str, &str)] = &[
    // The width of experts comes first.
    ("moe_intermediate_size", "intermediate_size"),
    ("intermediate_size", "prefix_dense_intermediate_size"),
    ("scoring_func", "expert_selection_fn"),
];

pub(super) const LAGUNA_REQUIRES: &[(&str, &[Literal])] =
    &[("moe_apply_router_weight_on_input", &[Bool(false)]), ("moe_router_logit_softcapping", &[Number(0.0)])];

pub(super) const GRANITE_HYBRID_REQUIRES: &[(&str, &[Literal])] =
    &[("position_embedding_type", &[Text("rope"), Text("nope")])];

pub(super) const BLOOM_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embed"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "seq_length"),
];

pub(super) const DBRX_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("num_key_value_heads", "attn_config.kv_n_heads"),
    ("max_position_embeddings", "max_seq_len"),
    ("qkv_limit", "attn_config.clip_qkv"),
    ("rope_theta", "attn_config.rope_theta"),
    ("intermediate_size", "ffn_config.ffn_hidden_size"),
    ("num_experts", "ffn_config.moe_num_experts"),
    ("num_experts_per_tok", "ffn_config.moe_top_k"),
    ("expert_weights_order", "ffn_config.moe_normalize_expert_weights"),
];

/// No state limits the context of models without attention; files have this length.
pub(super) const MAMBA_DEFAULTS: &[(&str, Literal)] = &[
    ("num_attention_heads", Number(1.0)),
    ("max_position_embeddings", Number(1_048_576.0)),
    ("has_mixers_only", Bool(true)),
];

pub(super) const FALCON_MAMBA_DEFAULTS: &[(&str, Literal)] = &[
    ("num_attention_heads", Number(1.0)),
    ("max_position_embeddings", Number(1_048_576.0)),
    ("has_mixers_only", Bool(true)),
    ("mamba_norms", Bool(true)),
];

/// The sizes of the first Llama of 7 billion weights, on which LLaVA is based.
pub(super) const LLAMA_NESTED: &[(&str, Literal)] = &[
    ("hidden_size", Number(4096.0)),
    ("intermediate_size", Number(11_008.0)),
    ("num_hidden_layers", Number(32.0)),
    ("num_attention_heads", Number(32.0)),
    ("max_position_embeddings", Number(2048.0)),
    ("rms_norm_eps", Number(1e-6)),
];

/// The sizes that Pixtral has in common with the first Mistral.
pub(super) const MISTRAL_NESTED: &[(&str, Literal)] = &[
    ("hidden_size", Number(4096.0)),
    ("intermediate_size", Number(14_336.0)),
    ("num_hidden_layers", Number(32.0)),
    ("num_attention_heads", Number(32.0)),
    ("num_key_value_heads", Number(8.0)),
    ("rms_norm_eps", Number(1e-6)),
];

/// The sizes of Qwen of 7 billion weights, on which Qwen 2 Audio is based.
pub(super) const QWEN2_NESTED: &[(&str, Literal)] = &[
    ("hidden_size", Number(4096.0)),
    ("intermediate_size", Number(22_016.0)),
    ("num_hidden_layers", Number(32.0)),
    ("num_attention_heads", Number(32.0)),
    ("max_position_embeddings", Number(32_768.0)),
    ("rms_norm_eps", Number(1e-6)),
];

/// Where configs list the layers of the vision tower whose rows are added to the first layers.
pub(super) const QWEN3_VL_ALIASES: &[(&str, &str)] = &[("deepstack_layers", "vision_config.deepstack_visual_indexes")];
