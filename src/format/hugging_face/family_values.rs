//! The names and the defaults that configs of encoders and their like have for values, and texts of families.

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
