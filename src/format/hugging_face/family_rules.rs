//! The names of tensors that differ from the common ones, for each family.

use super::rules::{Groups, Heads, Op, Outer, Rule};

/// Queries and keys of architectures that rotate neighbouring values.
pub(super) const ROTARY: &[Rule] = &[
    ("self_attn.q_proj", "attn_q", &[Op::RotaryRows(Heads::Query)]),
    ("self_attn.k_proj", "attn_k", &[Op::RotaryRows(Heads::Key)]),
];

/// The norm of the hidden values that a draft model reads.
pub(super) const DRAFTER: &[Rule] = &[("hidden_norm", "attn_norm_2", &[Op::Norm])];

/// The matrix that joins the residuals that a draft model reads.
pub(super) const DRAFTER_OUTSIDE: &[Rule] = &[("fc", "fc", &[])];

/// The norm between mixer and feed-forward under the name of a norm after the mixer.
pub(super) const NORM_AFTER_MIXER: &[Rule] = &[("post_attention_layernorm", "post_attention_norm", &[Op::Norm])];

pub(super) const MIXTRAL: &[Rule] = &[
    ("block_sparse_moe.gate", "ffn_gate_inp", &[]),
    ("block_sparse_moe.experts.*.w1.weight", "ffn_gate_exps.weight", &[]),
    ("block_sparse_moe.experts.*.w2.weight", "ffn_down_exps.weight", &[]),
    ("block_sparse_moe.experts.*.w3.weight", "ffn_up_exps.weight", &[]),
];

pub(super) const GPT_OSS: &[Rule] = &[
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

pub(super) const GEMMA4: &[Rule] = &[
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

/// Several residual streams, and a learnt residual.
pub(super) const GEMMA3N: &[Rule] = &[
    ("altup.prediction_coefs", "altup_predict_coef", &[]),
    ("altup.correction_coefs", "altup_correct_coef", &[]),
    ("altup.correct_output_scale", "altup_correct_scale.weight", &[]),
    ("altup.modality_router", "altup_router", &[]),
    ("altup.router_norm", "altup_router_norm", &[]),
    ("laurel.linear_left", "laurel_l", &[]),
    ("laurel.linear_right", "laurel_r", &[]),
    ("laurel.post_laurel_norm", "laurel_post_norm", &[]),
];

/// Value heads along the rows of a tensor.
const VALUE_ROWS: Op = Op::ValueHeads { axis: 0, after_keys: false };
/// Queries and keys, then value heads, along the rows of a tensor.
const MIXED_ROWS: Op = Op::ValueHeads { axis: 0, after_keys: true };

pub(super) const QWEN3_5: &[Rule] = &[
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

/// Residual streams with gates, an indexer of pools, and embeddings of n-grams, whose table is stored in parts.
pub(super) const QWEN4_EXP: &[Rule] = &[
    ("attn_hyper_connection.hc_norm", "hc_attn_norm", &[Op::Norm]),
    ("attn_hyper_connection.input_mix_weight_down", "hc_attn_down", &[]),
    ("attn_hyper_connection.input_mix_weight_up", "hc_attn_up", &[]),
    ("attn_hyper_connection.block_inject_weight", "hc_attn_inject", &[]),
    ("mlp_hyper_connection.hc_norm", "hc_ffn_norm", &[Op::Norm]),
    ("mlp_hyper_connection.input_mix_weight_down", "hc_ffn_down", &[]),
    ("mlp_hyper_connection.input_mix_weight_up", "hc_ffn_up", &[]),
    ("mlp_hyper_connection.block_inject_weight", "hc_ffn_inject", &[]),
    ("self_attn.indexer.index_qk_proj", "indexer.q_proj", &[Op::Ungroup { groups: Groups::Indexer, first: 0, end: 1 }]),
    ("self_attn.indexer.index_qk_proj", "indexer.k_proj", &[Op::Ungroup { groups: Groups::Indexer, first: 1, end: 2 }]),
    ("self_attn.indexer.q_layernorm", "indexer.q_norm", &[Op::Norm]),
    ("self_attn.indexer.k_layernorm", "indexer.k_norm", &[Op::Norm]),
    ("ple.key_proj", "ple_key", &[]),
    ("ple.value_proj", "ple_value", &[]),
    ("ple.norm_key", "ple_norm_key", &[Op::Norm]),
    ("ple.norm_query", "ple_norm_query", &[Op::Norm]),
    ("ple.norm_conv", "ple_norm_conv", &[Op::Norm]),
    ("ple.conv1d", "ple_conv1d", &[]),
    ("ple.ple_embedding.ngram_embedding.shard_*.weight", "/per_layer_token_embd.weight", &[Op::JoinOuter]),
    ("ple.ple_embedding.ngram_embedding", "/per_layer_token_embd", &[]),
];

pub(super) const QWEN4_EXP_OUTSIDE: &[Rule] = &[
    ("hyper_connection_mixer.hc_norm", "output_hc_norm", &[Op::Norm]),
    ("hyper_connection_mixer.input_mix_weight_down", "output_hc_down", &[]),
    ("hyper_connection_mixer.input_mix_weight_up", "output_hc_up", &[]),
];

pub(super) const BERT: &[Rule] = &[
    ("attention.self.query", "attn_q", &[]),
    ("attention.self.key", "attn_k", &[]),
    ("attention.self.value", "attn_v", &[]),
    ("attention.output.dense", "attn_output", &[]),
    ("attention.output.LayerNorm", "attn_output_norm", &[]),
    ("intermediate.dense", "ffn_up", &[]),
    ("output.dense", "ffn_down", &[]),
    ("output.LayerNorm", "layer_output_norm", &[]),
];

/// A layer over the first token, and the logit.
pub(super) const BERT_CLASSIFIER: &[Rule] = &[("pooler.dense", "cls", &[]), ("classifier", "cls.output", &[])];

pub(super) const ROBERTA_CLASSIFIER: &[Rule] =
    &[("classifier.dense", "cls", &[]), ("classifier.out_proj", "cls.output", &[])];

/// Queries, keys and values one after the other, and gates before the values that they multiply.
pub(super) const MODERN_BERT: &[Rule] = &[
    ("attn_norm", "attn_norm", &[]),
    ("attn.Wqkv", "attn_qkv", &[]),
    ("attn.Wo", "attn_output", &[]),
    ("mlp_norm", "ffn_norm", &[]),
    ("mlp.Wi", "ffn_up", &[]),
    ("mlp.Wo", "ffn_down", &[]),
];

pub(super) const MODERN_BERT_OUTSIDE: &[Rule] = &[
    ("embeddings.tok_embeddings", "token_embd", &[]),
    ("embeddings.norm", "token_embd_norm", &[]),
    ("final_norm", "output_norm", &[]),
];

/// The same, a layer with its norm, and the logits.
pub(super) const MODERN_BERT_CLASSIFIER: &[Rule] = &[
    ("embeddings.tok_embeddings", "token_embd", &[]),
    ("embeddings.norm", "token_embd_norm", &[]),
    ("final_norm", "output_norm", &[]),
    ("head.dense", "cls", &[]),
    ("head.norm", "cls.norm", &[]),
    ("classifier", "cls.output", &[]),
];

pub(super) const NOMIC_BERT: &[Rule] = &[
    ("attn.Wqkv", "attn_qkv", &[]),
    ("attn.out_proj", "attn_output", &[]),
    ("mlp.fc11", "ffn_up", &[]),
    ("mlp.fc12", "ffn_gate", &[]),
    ("mlp.fc2", "ffn_down", &[]),
    ("norm1", "attn_output_norm", &[]),
    ("norm2", "layer_output_norm", &[]),
];

/// Heads of keys whose number differs between layers, and the matrix in place of attention.
pub(super) const DECI: &[Rule] = &[
    ("self_attn.q_proj", "attn_q", &[Op::RotaryRows(Heads::Query)]),
    ("self_attn.k_proj", "attn_k", &[Op::RotaryRows(Heads::OfLength)]),
    ("self_attn.linear_attn", "attn_output", &[]),
];

/// The layers of Jina Embeddings 3.
pub(super) const JINA_3: &[Rule] = &[
    ("mixer.Wqkv", "attn_qkv", &[]),
    ("mixer.out_proj", "attn_output", &[]),
    ("norm1", "attn_output_norm", &[]),
    ("mlp.fc1", "ffn_up", &[]),
    ("mlp.fc2", "ffn_down", &[]),
    ("norm2", "layer_output_norm", &[]),
];

/// Feed-forwards without gates, and experts below one another.
pub(super) const NOMIC_BERT_MOE: &[Rule] = &[
    ("mlp.fc1", "ffn_up", &[]),
    ("mlp.router.layer", "ffn_gate_inp", &[]),
    ("mlp.experts.mlp.w1", "ffn_up_exps.weight", &[Op::Divide(Outer::Experts)]),
    ("mlp.experts.mlp.w2", "ffn_down_exps.weight", &[Op::Divide(Outer::Experts), Op::Transpose]),
];

pub(super) const GPT2: &[Rule] = &[
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

/// Attention, attention to the rows of the encoder, and the feed-forward.
pub(super) const WHISPER: &[&[Rule]] = &[
    &[
        ("self_attn_layer_norm", "attn_norm", &[]),
        ("self_attn.q_proj", "attn_q", &[]),
        ("self_attn.k_proj", "attn_k", &[]),
        ("self_attn.v_proj", "attn_v", &[]),
        ("self_attn.out_proj", "attn_output", &[]),
    ],
    &[
        ("encoder_attn_layer_norm", "attn_norm", &[]),
        ("encoder_attn.q_proj", "attn_q", &[]),
        ("encoder_attn.k_proj", "attn_k", &[]),
        ("encoder_attn.v_proj", "attn_v", &[]),
        ("encoder_attn.out_proj", "attn_output", &[]),
    ],
    &[("final_layer_norm", "attn_norm", &[]), ("fc1", "ffn_up", &[]), ("fc2", "ffn_down", &[])],
];

pub(super) const WHISPER_OUTSIDE: &[Rule] = &[
    ("embed_positions", "position_embd", &[Op::AfterEncoderRows]),
    ("layer_norm", "output_norm", &[]),
    ("proj_out", "output", &[]),
];

pub(super) const STARCODER: &[Rule] = &[
    ("ln_1", "attn_norm", &[]),
    ("ln_2", "ffn_norm", &[]),
    ("attn.c_attn", "attn_qkv", &[]),
    ("attn.c_proj", "attn_output", &[]),
    ("mlp.c_fc", "ffn_up", &[]),
    ("mlp.c_proj", "ffn_down", &[]),
];

pub(super) const STARCODER2: &[Rule] = &[("mlp.c_fc", "ffn_up", &[]), ("mlp.c_proj", "ffn_down", &[])];

pub(super) const MINIMAX: &[Rule] = &[("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", &[])];

pub(super) const MINIMAX_3: &[Rule] = &[
    ("mlp.gate_up_proj.weight", "ffn_gate.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("mlp.gate_up_proj.weight", "ffn_up.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("mlp.shared_experts.gate_up_proj.weight", "ffn_gate_shexp.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("mlp.shared_experts.gate_up_proj.weight", "ffn_up_shexp.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp", &[]),
    ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp", &[]),
    ("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp", &[]),
    ("self_attn.index_q_proj", "indexer.q_proj", &[]),
    ("self_attn.index_k_proj", "indexer.k_proj", &[]),
    ("self_attn.index_q_norm", "indexer.q_norm", &[Op::Norm]),
    ("self_attn.index_k_norm", "indexer.k_norm", &[Op::Norm]),
    ("self_attn.indexer.q_proj", "indexer.q_proj", &[]),
    ("self_attn.indexer.k_proj", "indexer.k_proj", &[]),
    ("self_attn.indexer.q_norm", "indexer.q_norm", &[Op::Norm]),
    ("self_attn.indexer.k_norm", "indexer.k_norm", &[Op::Norm]),
];

pub(super) const HUNYUAN3: &[Rule] = &[
    ("mlp.router.gate", "ffn_gate_inp", &[]),
    ("mlp.expert_bias", "exp_probs_b.bias", &[]),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp", &[]),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp", &[]),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp", &[]),
];

/// Sinks, gates and residual streams.
pub(super) const HUNYUAN4: &[Rule] = &[
    ("self_attn.learnable_sink_param", "attn_sinks.weight", &[]),
    ("self_attn.linear_gate", "attn_gate", &[]),
    ("hc_attn_layer.hc_pre.hc_fn", "hc_attn_fn.weight", &[]),
    ("hc_attn_layer.hc_pre.hc_base", "hc_attn_base.weight", &[]),
    ("hc_attn_layer.hc_pre.hc_scale", "hc_attn_scale.weight", &[]),
    ("hc_mlp_layer.hc_pre.hc_fn", "hc_ffn_fn.weight", &[]),
    ("hc_mlp_layer.hc_pre.hc_base", "hc_ffn_base.weight", &[]),
    ("hc_mlp_layer.hc_pre.hc_scale", "hc_ffn_scale.weight", &[]),
];

pub(super) const HUNYUAN4_OUTSIDE: &[Rule] = &[
    ("hc_head.hc_head_fn", "output_hc_fn.weight", &[]),
    ("hc_head.hc_head_base", "output_hc_base.weight", &[]),
    ("hc_head.hc_head_scale", "output_hc_scale.weight", &[]),
];

pub(super) const AFMOE: &[Rule] = &[
    ("self_attn.gate_proj", "attn_gate", &[]),
    ("mlp.router.gate", "ffn_gate_inp", &[]),
    ("mlp.expert_bias", "exp_probs_b.bias", &[]),
    ("pre_mlp_layernorm", "ffn_norm", &[]),
    ("post_mlp_layernorm", "post_ffw_norm", &[]),
];

pub(super) const GLM4: &[Rule] =
    &[("post_self_attn_layernorm", "post_attention_norm", &[]), ("post_mlp_layernorm", "post_ffw_norm", &[])];

/// Before the rules of GLM 4.
pub(super) const GLM4V: &[Rule] = &[
    ("self_attn.q_proj", "attn_q", &[Op::RotatedHalves(Heads::Query)]),
    ("self_attn.k_proj", "attn_k", &[Op::RotatedHalves(Heads::Key)]),
];

/// Latent attention.
pub(super) const LATENT: &[Rule] = &[
    ("self_attn.q_a_proj", "attn_q_a", &[]),
    ("self_attn.q_a_layernorm", "attn_q_a_norm", &[]),
    ("self_attn.q_b_proj", "attn_q_b", &[]),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", &[]),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm", &[]),
    // The part of keys is transposed, so that it applies to queries.
    (
        "self_attn.kv_b_proj.weight",
        "attn_k_b.weight",
        &[Op::Ungroup { groups: Groups::Latent, first: 0, end: 1 }, Op::Divide(Outer::QueryHeads), Op::Transpose],
    ),
    (
        "self_attn.kv_b_proj.weight",
        "attn_v_b.weight",
        &[Op::Ungroup { groups: Groups::Latent, first: 1, end: 2 }, Op::Divide(Outer::QueryHeads)],
    ),
];

/// The norms of heads, each in a tensor of its own.
pub(super) const STABLELM: &[Rule] = &[
    ("self_attn.q_layernorm.norms.*.weight", "attn_q_norm.weight", &[]),
    ("self_attn.k_layernorm.norms.*.weight", "attn_k_norm.weight", &[]),
];

/// The indexer of attention to selected positions.
pub(super) const INDEXER: &[Rule] = &[
    ("self_attn.indexer.wq_b", "indexer.attn_q_b", &[]),
    ("self_attn.indexer.wk", "indexer.attn_k", &[]),
    ("self_attn.indexer.k_norm", "indexer.k_norm", &[]),
    ("self_attn.indexer.weights_proj", "indexer.proj", &[]),
];

/// Several residual streams with hyper-connections.
pub(super) const HYPER_CONNECTIONS: &[Rule] = &[
    ("hc_attn_fn", "hc_attn_fn.weight", &[]),
    ("hc_attn_base", "hc_attn_base.weight", &[]),
    ("hc_attn_scale", "hc_attn_scale.weight", &[]),
    ("hc_ffn_fn", "hc_ffn_fn.weight", &[]),
    ("hc_ffn_base", "hc_ffn_base.weight", &[]),
    ("hc_ffn_scale", "hc_ffn_scale.weight", &[]),
];

/// An indexer of pools.
pub(super) const GLM5_NEXT: &[Rule] = &[
    ("self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate.weight", &[]),
    ("self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape.weight", &[]),
];

/// The names of DeepSeek's own code. transformers saves one norm under another name.
pub(super) const DEEPSEEK_4: &[Rule] = &[
    ("attn_norm", "attn_norm", &[]),
    ("attn.wq_a", "attn_q_a", &[]),
    ("attn.q_norm", "attn_q_a_norm", &[]),
    ("attn.wq_b", "attn_q_b", &[]),
    ("attn.wkv", "attn_kv", &[]),
    ("attn.kv_norm", "attn_kv_a_norm", &[]),
    ("attn.norm", "attn_kv_a_norm", &[]),
    ("attn.wo_a", "attn_output_a", &[]),
    ("attn.wo_b", "attn_output_b", &[]),
    ("attn.attn_sink", "attn_sinks.weight", &[]),
    ("attn.compressor.wkv", "attn_compressor_kv", &[]),
    ("attn.compressor.wgate", "attn_compressor_gate", &[]),
    ("attn.compressor.ape", "attn_compressor_ape.weight", &[]),
    ("attn.compressor.norm", "attn_compressor_norm", &[]),
    ("attn.indexer.wq_b", "indexer.attn_q_b", &[]),
    ("attn.indexer.weights_proj", "indexer.proj", &[]),
    ("attn.indexer.compressor.wkv", "indexer_compressor_kv", &[]),
    ("attn.indexer.compressor.wgate", "indexer_compressor_gate", &[]),
    ("attn.indexer.compressor.ape", "indexer_compressor_ape.weight", &[]),
    ("attn.indexer.compressor.norm", "indexer_compressor_norm", &[]),
    ("ffn_norm", "ffn_norm", &[]),
    ("ffn.gate.weight", "ffn_gate_inp.weight", &[]),
    ("ffn.gate.bias", "exp_probs_b.bias", &[]),
    ("ffn.gate.bias_vl", "exp_probs_b_vl.bias", &[]),
    ("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight", &[Op::Numbers]),
    ("ffn.experts.*.w1.weight", "ffn_gate_exps.weight", &[]),
    ("ffn.experts.*.w2.weight", "ffn_down_exps.weight", &[]),
    ("ffn.experts.*.w3.weight", "ffn_up_exps.weight", &[]),
    ("ffn.shared_experts.w1", "ffn_gate_shexp", &[]),
    ("ffn.shared_experts.w2", "ffn_down_shexp", &[]),
    ("ffn.shared_experts.w3", "ffn_up_shexp", &[]),
];

/// Tensors outside of layers, under the names of DeepSeek's own code and under those of transformers.
pub(super) const DEEPSEEK_4_OUTSIDE: &[Rule] = &[
    ("embed", "token_embd", &[]),
    ("head", "output", &[]),
    ("hc_head_fn", "output_hc_fn.weight", &[]),
    ("hc_head_base", "output_hc_base.weight", &[]),
    ("hc_head_scale", "output_hc_scale.weight", &[]),
    ("hc_head.hc_fn", "output_hc_fn.weight", &[]),
    ("hc_head.hc_base", "output_hc_base.weight", &[]),
    ("hc_head.hc_scale", "output_hc_scale.weight", &[]),
];

/// Feed-forwards under another name.
pub(super) const FEED_FORWARD: &[Rule] = &[
    ("feed_forward.gate_proj", "ffn_gate", &[]),
    ("feed_forward.up_proj", "ffn_up", &[]),
    ("feed_forward.down_proj", "ffn_down", &[]),
];

pub(super) const LLAMA4: &[Rule] = &[
    ("feed_forward.router", "ffn_gate_inp", &[]),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp", &[]),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp", &[]),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp", &[]),
    ("feed_forward.experts.gate_up_proj", "ffn_gate_exps.weight", &[Op::Half { part: 0, axis: 0 }, Op::Transpose]),
    ("feed_forward.experts.gate_up_proj", "ffn_up_exps.weight", &[Op::Half { part: 1, axis: 0 }, Op::Transpose]),
    ("feed_forward.experts.down_proj", "ffn_down_exps.weight", &[Op::Transpose]),
];

pub(super) const GRANITE_EXPERTS: &[Rule] = &[
    ("block_sparse_moe.router.layer", "ffn_gate_inp", &[]),
    ("block_sparse_moe.input_linear.weight", "ffn_gate_exps.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("block_sparse_moe.input_linear.weight", "ffn_up_exps.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("block_sparse_moe.output_linear", "ffn_down_exps", &[]),
    ("block_sparse_moe.router", "ffn_gate_inp", &[]),
    ("block_sparse_moe.experts.gate_up_proj", "ffn_gate_exps.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("block_sparse_moe.experts.gate_up_proj", "ffn_up_exps.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("block_sparse_moe.experts.down_proj", "ffn_down_exps.weight", &[]),
    ("shared_mlp.input_linear.weight", "ffn_gate_shexp.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("shared_mlp.input_linear.weight", "ffn_up_shexp.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("shared_mlp.output_linear", "ffn_down_shexp", &[]),
];

/// The shared expert of layers without others.
pub(super) const GRANITE_DENSE: &[Rule] = &[
    ("shared_mlp.input_linear.weight", "ffn_gate.weight", &[Op::Half { part: 0, axis: 1 }]),
    ("shared_mlp.input_linear.weight", "ffn_up.weight", &[Op::Half { part: 1, axis: 1 }]),
    ("shared_mlp.output_linear", "ffn_down", &[]),
];

/// The state space of Mamba 2.
pub(super) const MAMBA: &[Rule] = &[
    ("mamba.in_proj", "ssm_in", &[Op::StateFactors]),
    ("mamba.conv1d", "ssm_conv1d", &[]),
    ("mamba.A_log", "ssm_a", &[Op::NegExp, Op::Divide(Outer::All)]),
    ("mamba.D", "ssm_d", &[Op::Divide(Outer::All)]),
    ("mamba.dt_bias", "ssm_dt.bias", &[]),
    ("mamba.norm", "ssm_norm", &[Op::Divide(Outer::StateGroups)]),
    ("mamba.out_proj", "ssm_out", &[]),
];

pub(super) const PHI: &[Rule] =
    &[("self_attn.dense", "attn_output", &[]), ("mlp.fc1", "ffn_up", &[]), ("mlp.fc2", "ffn_down", &[])];

/// Queries, keys and values in one matrix, and feed-forwards of four times the width.
pub(super) const NEOX: &[Rule] = &[
    ("attention.query_key_value", "attn_qkv", &[FUSED_ROWS]),
    ("attention.dense", "attn_output", &[]),
    ("self_attention.query_key_value", "attn_qkv", &[FUSED_ROWS]),
    ("self_attention.dense", "attn_output", &[]),
    ("mlp.dense_h_to_4h", "ffn_up", &[]),
    ("mlp.dense_4h_to_h", "ffn_down", &[]),
];

/// Queries of all heads, then keys, then values.
const FUSED_ROWS: Op = Op::Ungroup { groups: Groups::Fused, first: 0, end: 3 };

/// The two norms of larger models.
pub(super) const FALCON: &[Rule] = &[("ln_attn", "attn_norm_2", &[]), ("ln_mlp", "attn_norm", &[])];

pub(super) const ERNIE_EXPERTS: &[Rule] = &[("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", &[])];

/// Norms on heads under other names.
pub(super) const HUNYUAN: &[Rule] =
    &[("self_attn.query_layernorm", "attn_q_norm", &[]), ("self_attn.key_layernorm", "attn_k_norm", &[])];

pub(super) const HUNYUAN_EXPERTS: &[Rule] = &[
    ("mlp.gate.wg", "ffn_gate_inp", &[]),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp", &[]),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp", &[]),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp", &[]),
];

pub(super) const QWEN3_NEXT: &[Rule] = &[
    ("linear_attn.A_log", "ssm_a", &[Op::NegExp]),
    ("linear_attn.dt_bias", "ssm_dt.bias", &[]),
    ("linear_attn.conv1d", "ssm_conv1d", &[]),
    ("linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", &[Op::Ungroup { groups: Groups::Delta, first: 0, end: 3 }]),
    ("linear_attn.in_proj_qkvz.weight", "attn_gate.weight", &[Op::Ungroup { groups: Groups::Delta, first: 3, end: 4 }]),
    ("linear_attn.in_proj_ba", "ssm_ba", &[]),
    ("linear_attn.norm", "ssm_norm", &[]),
    ("linear_attn.out_proj", "ssm_out", &[]),
];

pub(super) const LFM2: &[Rule] = &[
    ("operator_norm", "attn_norm", &[]),
    ("ffn_norm", "ffn_norm", &[]),
    ("conv.conv", "shortconv.conv", &[]),
    ("conv.in_proj", "shortconv.in_proj", &[]),
    ("conv.out_proj", "shortconv.out_proj", &[]),
    ("self_attn.out_proj", "attn_output", &[]),
    ("self_attn.q_layernorm", "attn_q_norm", &[]),
    ("self_attn.k_layernorm", "attn_k_norm", &[]),
    ("feed_forward.w1", "ffn_gate", &[]),
    ("feed_forward.w2", "ffn_down", &[]),
    ("feed_forward.w3", "ffn_up", &[]),
    ("feed_forward.gate", "ffn_gate_inp", &[]),
    ("feed_forward.expert_bias", "exp_probs_b.bias", &[]),
    ("feed_forward.experts.*.w1.weight", "ffn_gate_exps.weight", &[]),
    ("feed_forward.experts.*.w2.weight", "ffn_down_exps.weight", &[]),
    ("feed_forward.experts.*.w3.weight", "ffn_up_exps.weight", &[]),
];

/// Before the rules of LFM 2.
pub(super) const LFM3: &[Rule] = &[
    ("post_operator_norm", "post_attention_norm", &[]),
    ("post_ffn_norm", "post_ffw_norm", &[]),
    ("self_attn.g_proj", "attn_gate", &[]),
    ("self_attn.gate_proj", "attn_gate", &[]),
];

pub(super) const KIMI_LINEAR: &[Rule] = &[
    ("self_attn.q_conv1d", "ssm_conv1d_q", &[]),
    ("self_attn.k_conv1d", "ssm_conv1d_k", &[]),
    ("self_attn.v_conv1d", "ssm_conv1d_v", &[]),
    ("self_attn.A_log", "ssm_a", &[Op::NegExp]),
    ("self_attn.dt_bias", "ssm_dt.bias", &[]),
    ("self_attn.f_a_proj", "ssm_f_a", &[]),
    ("self_attn.f_b_proj", "ssm_f_b", &[]),
    ("self_attn.b_proj", "ssm_beta", &[]),
    ("self_attn.g_a_proj", "ssm_g_a", &[]),
    ("self_attn.g_b_proj", "ssm_g_b", &[]),
    ("self_attn.o_norm", "ssm_norm", &[]),
    ("block_sparse_moe.gate_proj", "ffn_gate", &[]),
    ("block_sparse_moe.up_proj", "ffn_up", &[]),
    ("block_sparse_moe.down_proj", "ffn_down", &[]),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias", &[]),
    ("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp", &[]),
    ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp", &[]),
    ("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp", &[]),
];

/// Before the rules of Kimi Linear. Earlier residuals are read by the product of a norm's weight and a projection.
pub(super) const KIMI_3: &[Rule] = &[
    ("self_attn.g_proj", "attn_gate", &[]),
    ("self_attention_res_norm.weight", "attn_res_score.weight", &[Op::Factor(0)]),
    ("self_attention_res_proj.weight", "attn_res_score.weight", &[Op::Factor(1)]),
    ("mlp_res_norm.weight", "ffn_res_score.weight", &[Op::Factor(0)]),
    ("mlp_res_proj.weight", "ffn_res_score.weight", &[Op::Factor(1)]),
    ("block_sparse_moe.routed_expert_down_proj", "ffn_routed_down", &[]),
    ("block_sparse_moe.routed_expert_norm", "ffn_routed_norm", &[]),
    ("block_sparse_moe.routed_expert_up_proj", "ffn_routed_up", &[]),
];

/// The gate of the delta rule has the name of the gate of attention.
pub(super) const KIMI_3_RECURRENT: &[Rule] = &[("self_attn.g_proj", "ssm_g", &[])];

pub(super) const KIMI_3_OUTSIDE: &[Rule] = &[
    ("output_attn_res_norm.weight", "output_res_score.weight", &[Op::Factor(0)]),
    ("output_attn_res_proj.weight", "output_res_score.weight", &[Op::Factor(1)]),
];

pub(super) const NEMOTRON_H: &[Rule] = &[
    ("norm", "attn_norm", &[]),
    ("mixer.in_proj", "ssm_in", &[]),
    ("mixer.conv1d", "ssm_conv1d", &[]),
    ("mixer.A_log", "ssm_a", &[Op::NegExp, Op::Divide(Outer::All)]),
    ("mixer.D", "ssm_d", &[Op::Divide(Outer::All)]),
    ("mixer.dt_bias", "ssm_dt.bias", &[]),
    ("mixer.norm", "ssm_norm", &[Op::Divide(Outer::StateGroups)]),
    ("mixer.out_proj", "ssm_out", &[]),
    ("mixer.q_proj", "attn_q", &[]),
    ("mixer.k_proj", "attn_k", &[]),
    ("mixer.v_proj", "attn_v", &[]),
    ("mixer.o_proj", "attn_output", &[]),
    ("mixer.up_proj", "ffn_up", &[]),
    ("mixer.down_proj", "ffn_down", &[]),
    ("mixer.gate", "ffn_gate_inp", &[]),
    ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias", &[]),
    ("mixer.experts.*.up_proj.weight", "ffn_up_exps.weight", &[]),
    ("mixer.experts.*.down_proj.weight", "ffn_down_exps.weight", &[]),
    ("mixer.shared_experts.up_proj", "ffn_up_shexp", &[]),
    ("mixer.shared_experts.down_proj", "ffn_down_shexp", &[]),
    ("mixer.fc1_latent_proj", "ffn_latent_down", &[]),
    ("mixer.fc2_latent_proj", "ffn_latent_up", &[]),
];

pub(super) const FALCON_H1: &[Rule] = &[("pre_ff_layernorm", "ffn_norm", &[])];

/// Queries, keys and values one after the other, and two norms.
pub(super) const MPT: &[Rule] = &[
    ("norm_1", "attn_norm", &[]),
    ("norm_2", "ffn_norm", &[]),
    ("attn.Wqkv", "attn_qkv", &[]),
    ("attn.out_proj", "attn_output", &[]),
    ("ffn.up_proj", "ffn_up", &[]),
    ("ffn.down_proj", "ffn_down", &[]),
];

/// The matrices of all experts below one another.
pub(super) const DBRX: &[Rule] = &[
    ("norm_attn_norm.norm_1", "attn_norm", &[]),
    ("norm_attn_norm.norm_2", "attn_output_norm", &[]),
    ("norm_attn_norm.attn.Wqkv", "attn_qkv", &[]),
    ("norm_attn_norm.attn.out_proj", "attn_output", &[]),
    ("ffn.router.layer", "ffn_gate_inp", &[]),
    ("ffn.experts.mlp.w1", "ffn_gate_exps.weight", &[Op::Divide(Outer::Experts)]),
    ("ffn.experts.mlp.v1", "ffn_up_exps.weight", &[Op::Divide(Outer::Experts)]),
    ("ffn.experts.mlp.w2", "ffn_down_exps.weight", &[Op::Divide(Outer::Experts), Op::Transpose]),
];

/// The parts of a matrix with the query heads, the key and the value of each group.
pub(super) const INTERNLM2: &[Rule] = &[
    ("attention_norm", "attn_norm", &[]),
    ("ffn_norm", "ffn_norm", &[]),
    (
        "attention.wqkv",
        "attn_q",
        &[Op::Ungroup { groups: Groups::Fused, first: 0, end: 1 }, Op::RotaryRows(Heads::Query)],
    ),
    (
        "attention.wqkv",
        "attn_k",
        &[Op::Ungroup { groups: Groups::Fused, first: 1, end: 2 }, Op::RotaryRows(Heads::Key)],
    ),
    ("attention.wqkv", "attn_v", &[Op::Ungroup { groups: Groups::Fused, first: 2, end: 3 }]),
    ("attention.wo", "attn_output", &[]),
    ("feed_forward.w1", "ffn_gate", &[]),
    ("feed_forward.w2", "ffn_down", &[]),
    ("feed_forward.w3", "ffn_up", &[]),
];

/// The mixer of Mamba 1, in models of such layers only.
pub(super) const MAMBA1: &[Rule] = &[
    ("norm", "attn_norm", &[]),
    ("mixer.in_proj", "ssm_in", &[]),
    ("mixer.conv1d", "ssm_conv1d", &[]),
    ("mixer.x_proj", "ssm_x", &[]),
    ("mixer.dt_proj", "ssm_dt", &[]),
    ("mixer.A_log", "ssm_a", &[Op::NegExp]),
    ("mixer.D", "ssm_d", &[]),
    ("mixer.out_proj", "ssm_out", &[]),
];

/// The same next to attention, with norms of the time step, B and C.
pub(super) const JAMBA: &[Rule] = &[
    ("mamba.in_proj", "ssm_in", &[]),
    ("mamba.conv1d", "ssm_conv1d", &[]),
    ("mamba.x_proj", "ssm_x", &[]),
    ("mamba.dt_proj", "ssm_dt", &[]),
    ("mamba.A_log", "ssm_a", &[Op::NegExp]),
    ("mamba.D", "ssm_d", &[]),
    ("mamba.out_proj", "ssm_out", &[]),
    ("mamba.dt_layernorm", "ssm_dt_norm", &[]),
    ("mamba.b_layernorm", "ssm_b_norm", &[]),
    ("mamba.c_layernorm", "ssm_c_norm", &[]),
    ("pre_ff_layernorm", "ffn_norm", &[]),
    ("feed_forward.router", "ffn_gate_inp", &[]),
    ("feed_forward.experts.*.gate_proj.weight", "ffn_gate_exps.weight", &[]),
    ("feed_forward.experts.*.up_proj.weight", "ffn_up_exps.weight", &[]),
    ("feed_forward.experts.*.down_proj.weight", "ffn_down_exps.weight", &[]),
];

const QUERIES: Op = Op::Ungroup { groups: Groups::InTurn, first: 0, end: 1 };
const KEYS: Op = Op::Ungroup { groups: Groups::InTurn, first: 1, end: 2 };
const VALUES: Op = Op::Ungroup { groups: Groups::InTurn, first: 2, end: 3 };

/// Ling's attention.
pub(super) const LING: &[Rule] = &[
    ("attention.query_key_value", "attn_q", &[QUERIES, Op::RotaryRows(Heads::Query)]),
    ("attention.query_key_value", "attn_k", &[KEYS, Op::RotaryRows(Heads::Key)]),
    ("attention.query_key_value", "attn_v", &[VALUES]),
    ("attention.dense", "attn_output", &[]),
];

pub(super) const APERTUS: &[Rule] =
    &[("attention_layernorm", "attn_norm", &[]), ("feedforward_layernorm", "ffn_norm", &[])];

pub(super) const LAGUNA: &[Rule] =
    &[("self_attn.g_proj", "attn_gate", &[]), ("mlp.experts.e_score_correction_bias", "exp_probs_b.bias", &[])];

pub(super) const MIMO: &[Rule] = &[("self_attn.attention_sink_bias", "attn_sinks.weight", &[])];

/// All experts in one tensor each, and a shared one.
pub(super) const STEP: &[Rule] = &[
    ("self_attn.g_proj", "attn_gate", &[]),
    ("moe.gate", "ffn_gate_inp", &[]),
    ("moe.router_bias", "exp_probs_b.bias", &[]),
    ("moe.gate_proj.weight", "ffn_gate_exps.weight", &[]),
    ("moe.up_proj.weight", "ffn_up_exps.weight", &[]),
    ("moe.down_proj.weight", "ffn_down_exps.weight", &[]),
    ("share_expert.gate_proj", "ffn_gate_shexp", &[]),
    ("share_expert.up_proj", "ffn_up_shexp", &[]),
    ("share_expert.down_proj", "ffn_down_shexp", &[]),
];

pub(super) const BAICHUAN: &[Rule] = &[
    ("self_attn.W_pack", "attn_q", &[QUERIES, Op::RotaryRows(Heads::Query)]),
    ("self_attn.W_pack", "attn_k", &[KEYS, Op::RotaryRows(Heads::Key)]),
    ("self_attn.W_pack", "attn_v", &[VALUES]),
];

/// Queries, keys and values one after the other, and gates before the values that they multiply.
pub(super) const CHATGLM: &[Rule] = &[
    ("self_attention.query_key_value", "attn_qkv", &[]),
    ("self_attention.dense", "attn_output", &[]),
    ("mlp.dense_h_to_4h", "ffn_up", &[]),
    ("mlp.dense_4h_to_h", "ffn_down", &[]),
];

/// Experts with a row for each input.
pub(super) const TRANSPOSED_EXPERTS: &[Rule] = &[
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", &[Op::Half { part: 0, axis: 0 }, Op::Transpose]),
    ("mlp.experts.gate_up_proj", "ffn_up_exps.weight", &[Op::Half { part: 1, axis: 0 }, Op::Transpose]),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", &[Op::Transpose]),
];

pub(super) const EXAONE3: &[Rule] = &[
    ("ln_1", "attn_norm", &[]),
    ("ln_2", "ffn_norm", &[]),
    ("attn.attention.q_proj", "attn_q", &[]),
    ("attn.attention.k_proj", "attn_k", &[]),
    ("attn.attention.v_proj", "attn_v", &[]),
    ("attn.attention.out_proj", "attn_output", &[]),
    ("mlp.c_fc_0", "ffn_gate", &[]),
    ("mlp.c_fc_1", "ffn_up", &[]),
    ("mlp.c_proj", "ffn_down", &[]),
];

/// Norms of layers, but not the last norm, are stored without the 1 that is added to them.
pub(super) const MUSE_GLIMMER: &[Rule] = &[
    ("input_layernorm", "attn_norm", &[Op::AddOne]),
    ("post_attention_layernorm", "post_attention_norm", &[Op::AddOne]),
    ("pre_feedforward_layernorm", "ffn_norm", &[Op::AddOne]),
    ("post_feedforward_layernorm", "post_ffw_norm", &[Op::AddOne]),
    ("self_attn.gate_proj", "attn_gate", &[]),
];
