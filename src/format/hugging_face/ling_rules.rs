//! The names of tensors of Ling and Ring.

use super::rules::{Groups, Op, Outer, Rule};

pub(super) const LING2: &[Rule] = &[
    ("attention.query_key_value", "attn_qkv", &[]),
    ("attention.dense", "attn_output", &[]),
    ("attention.query_layernorm", "attn_q_norm", &[]),
    ("attention.key_layernorm", "attn_k_norm", &[]),
    ("mlp.gate.expert_bias", "exp_probs_b.bias", &[]),
    // Of the layer that predicts one more token.
    ("final_layernorm", "layer_output_norm", &[]),
];

/// Layers of the delta rule and of latent attention.
pub(super) const LING3: &[Rule] = &[
    ("attention.q_proj", "attn_q", &[]),
    ("attention.k_proj", "attn_k", &[]),
    ("attention.v_proj", "attn_v", &[]),
    ("attention.o_proj", "attn_output", &[]),
    ("attention.q_conv1d", "ssm_conv1d_q", &[]),
    ("attention.k_conv1d", "ssm_conv1d_k", &[]),
    ("attention.v_conv1d", "ssm_conv1d_v", &[]),
    ("attention.A_log", "ssm_a", &[Op::Exp, Op::Divide(Outer::All)]),
    ("attention.dt_bias", "ssm_dt.bias", &[]),
    ("attention.f_proj", "ssm_f_a", &[]),
    ("attention.b_proj", "ssm_beta", &[]),
    ("attention.o_norm", "ssm_norm", &[]),
    ("attention.dense", "attn_output", &[]),
    ("attention.g_proj", "attn_gate", &[]),
    ("attention.q_a_proj", "attn_q_a", &[]),
    ("attention.q_a_layernorm", "attn_q_a_norm", &[]),
    ("attention.q_b_proj", "attn_q_b", &[]),
    ("attention.kv_a_proj_with_mqa", "attn_kv_a_mqa", &[]),
    ("attention.kv_a_layernorm", "attn_kv_a_norm", &[]),
    (
        "attention.kv_b_proj.weight",
        "attn_k_b.weight",
        &[Op::Ungroup { groups: Groups::Latent, first: 0, end: 1 }, Op::Divide(Outer::QueryHeads), Op::Transpose],
    ),
    (
        "attention.kv_b_proj.weight",
        "attn_v_b.weight",
        &[Op::Ungroup { groups: Groups::Latent, first: 1, end: 2 }, Op::Divide(Outer::QueryHeads)],
    ),
    ("mlp.gate.expert_bias", "exp_probs_b.bias", &[]),
    // Of the layer that predicts one more token.
    ("final_layernorm", "layer_output_norm", &[]),
];

/// The gate of the delta rule has the name of the gate of attention.
pub(super) const LING3_RECURRENT: &[Rule] = &[("attention.g_proj", "ssm_g_a", &[])];
