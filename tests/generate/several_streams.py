"""Tiny checkpoints of the families with several residual streams."""

import gguf
import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH as ARCH

import hybrids
import parts
import text_models
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from parts import Parts


def write_gemma3n_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    # Minus infinity for layers without a cutoff.
    parts = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    writer.add_activation_sparsity_scale(torch.distributions.normal.Normal(0, 1).icdf(parts).tolist())
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


GEMMA3N = Family(
    ARCH.GEMMA3N, transformers.Gemma3nForCausalLM, transformers.Gemma3nTextConfig, vocabulary.write_sentencepiece,
    write_keys=write_gemma3n_keys,
    stacks=("model.altup_projections.", "model.altup_unembed_projections."),
    rules=lambda config: {r"altup\.correct_output_scale": Parts(("altup_correct_scale.weight",))},
)  # fmt: skip



def glm5_rules(config) -> dict[str, Parts]:
    # Larger than those that are drawn, so that decays differ.
    negative = Parts(("ssm_a",), lambda values: [-np.exp(values + 3)], lambda parts: np.log(-parts[0]))
    return hybrids.kimi_rules(config) | {
        r"self_attn\.forget_gate\.A_log": negative,
    } | {
        rf"self_attn\.indexer\.index_kpool_compress_{part}": Parts((f"indexer_compressor_{part}.weight",))
        for part in ("gate", "ape")
    } | {
        rf"{half}_hc\.{part}": Parts((f"hc_{half}_{part}.weight",))
        for half in ("attn", "ffn") for part in ("fn", "base", "scale")
    }  # fmt: skip


def write_glm5_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    writer.add_kda_gate_lower_bound(config.linear_lower_bound)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    writer.add_indexer_kpool(config.index_kpool)
    writer.add_indexer_kpool_select_tail(config.index_kpool_always_select_tail)
    writer.add_indexer_types([kind == "full" for kind in config.indexer_types])
    writer.add_hyper_connection_count(config.hc_mult)
    writer.add_hyper_connection_sinkhorn_iterations(config.hc_sinkhorn_iters)
    writer.add_hyper_connection_epsilon(config.hc_eps)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_swiglu_clamp_exp([config.swiglu_limit] * config.num_hidden_layers)
    writer.add_swiglu_clamp_shexp([config.swiglu_limit] * config.num_hidden_layers)


def write_glm5_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv([0 if kind == "linear_attention" else 1 for kind in config.layer_types])
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(0)


GLM5_NEXT = Family(
    ARCH.GLM5_NEXT, text_models.causal("Glm5Next"), transformers.Glm5NextTextConfig, vocabulary.write_byte_level,
    write_keys=write_glm5_keys, write_heads=write_glm5_heads, rules=glm5_rules,
)  # fmt: skip


def hunyuan4_rules(config) -> dict[str, Parts]:
    rotated = config.qk_rope_head_dim
    # transformers rotates the halves of a section with the weights as published, whose pairs are neighbours.
    sections = {
        r"q_b_proj\.weight": ("attn_q_b.weight", config.qk_nope_head_dim + rotated),
        r"kv_a_proj_with_mqa\.weight": ("attn_kv_a_mqa.weight", config.kv_lora_rank + rotated),
        r"indexer\.wq_b\.weight": ("indexer.attn_q_b.weight", config.index_head_dim),
        r"indexer\.wk\.weight": ("indexer.attn_k.weight", config.index_head_dim),
        r"indexer\.k_norm\.weight": ("indexer.k_norm.weight", config.index_head_dim),
        r"indexer\.k_norm\.bias": ("indexer.k_norm.bias", config.index_head_dim),
    }
    return parts.EXPERTS | parts.SINKS | parts.latent(config) | {
        rf"self_attn\.{name}": Parts((stored,), **parts.last_neighbours(head, rotated))
        for name, (stored, head) in sections.items()
    } | {r"self_attn\.gate_proj\.weight": Parts(("attn_gate.weight",))} | {
        rf"{half}_hc\.{part}": Parts((f"hc_{half}_{part}.weight",))
        for half in ("attn", "ffn") for part in ("fn", "base", "scale")
    } | {rf"model\.hc_head\.hc_{part}": Parts((f"output_hc_{part}.weight",)) for part in ("fn", "base", "scale")}  # fmt: skip


def write_hunyuan4_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    writer.add_indexer_types([kind == "full" for kind in config.indexer_types])
    writer.add_hyper_connection_count(config.hc_mult)
    writer.add_hyper_connection_epsilon(config.hc_eps)
    writer.add_hyper_connection_magnitude(config.hc_magnitude)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_swiglu_clamp_exp([config.swiglu_limit] * config.num_hidden_layers)


def write_hunyuan4_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


HUNYUAN4 = Family(
    ARCH.HY_V4, transformers.HYV4ForCausalLM, transformers.HYV4Config, vocabulary.write_byte_level,
    write_keys=write_hunyuan4_keys, write_heads=write_hunyuan4_heads, rules=hunyuan4_rules,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # The second and the fourth layer attend to the positions that the one before has selected. Limits so low that they apply, and
    # an epsilon of gates so large that it counts.
    "hy_v4": Checkpoint(HUNYUAN4, sizes(
        hidden_size=48, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=40, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=20, rope_parameters=rope(), index_topk=16, index_head_dim=20, index_n_heads=16,
        indexer_types=["full", "shared"] * 2, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        n_shared_experts=1, mlp_layer_types=["dense"] + ["sparse"] * 3, routed_scaling_factor=1.5, swiglu_limit=1.0,
        hc_mult=3, hc_magnitude=1.5, hc_eps=1e-2, pad_token_id=0), draw=19),
    # The third layer attends to the positions that the second one has selected. Enough heads of the indexer that no pool has a
    # negative product with all of them: its score would be exactly 0, as that of others. Limits so low that they apply.
    "glm5-next": Checkpoint(GLM5_NEXT, hybrids.small(
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=16,
        qk_rope_head_dim=0, v_head_dim=12, linear_head_dim=16, linear_num_heads=4, linear_lower_bound=-5.0,
        layer_types=["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
        indexer_types=["full", "full", "shared", "full"],
        index_topk=16, index_head_dim=20, index_n_heads=16, index_kpool=4, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=1, routed_scaling_factor=1.5, mlp_layer_types=["dense"] + ["sparse"] * 3,
        swiglu_limit=1.0, hc_mult=4, hc_sinkhorn_iters=20, pad_token_id=0, tie_word_embeddings=False)),
    # The first two layers have a cutoff; the last two read the keys and values of earlier ones.
    "gemma3n": Checkpoint(GEMMA3N, sizes(
        num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, hidden_size=32, head_dim=16,
        intermediate_size=[48, 48, 40, 40, 56, 56], activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.0, 0.0, 0.0],
        sliding_window=24, tie_word_embeddings=True, hidden_size_per_layer_input=8,
        # The second table lacks the last tokens.
        vocab_size_per_layer_input=vocabulary.SIZE - 12, num_kv_shared_layers=2, laurel_rank=12, altup_num_inputs=4,
        final_logit_softcapping=8.0,
        rope_parameters={"sliding_attention": rope(theta=10000.0), "full_attention": rope(theta=1000000.0)})),
}  # fmt: skip
