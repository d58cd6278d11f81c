//! The names and the defaults that configs of some families have for values, what they must be, and texts of families.

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
