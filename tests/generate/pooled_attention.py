"""Tiny checkpoints of the families whose layers attend to entries of pools of positions."""

import re

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family, Numbers, rope, sizes
from parts import Parts

# Positions of a pool in each kind of layer: those of llama.cpp's loader.
POOLS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def of_means(name: str, stem: str) -> dict[str, Parts]:
    """The tensors that compute the means of pools."""
    stored = {r"kv_proj\.weight": "kv", r"gate_proj\.weight": "gate", "position_bias": "ape", r"kv_norm\.weight": "norm"}
    return {rf"{name}\.{part}": Parts((f"{stem}_{kind}.weight",)) for part, kind in stored.items()}


def rules(config) -> dict[str, Parts]:
    attention = {
        r"q_a_proj\.weight": "attn_q_a", r"q_a_norm\.weight": "attn_q_a_norm", r"q_b_proj\.weight": "attn_q_b",
        r"kv_proj\.weight": "attn_kv", r"kv_norm\.weight": "attn_kv_a_norm", r"o_a_proj\.weight": "attn_output_a",
        r"o_b_proj\.weight": "attn_output_b", "sinks": "attn_sinks",
        r"compressor\.indexer\.q_b_proj\.weight": "indexer.attn_q_b",
        r"compressor\.indexer\.scorer\.weights_proj\.weight": "indexer.proj",
    }  # fmt: skip
    compressor = r"self_attn\.compressor"
    return (
        parts.EXPERTS
        | {rf"self_attn\.{name}": Parts((f"{stored}.weight",)) for name, stored in attention.items()}
        | {r"mlp\.gate\.tid2eid": Parts(("ffn_gate_tid2eid.weight",))}
        | of_means(compressor, "attn_compressor")
        | of_means(rf"{compressor}\.indexer", "indexer_compressor")
        | {
            rf"{half}_hc\.{part}": Parts((f"hc_{half}_{part}.weight",))
            for half in ("attn", "ffn") for part in ("fn", "base", "scale")
        }
        | {rf"model\.hc_head\.hc_{part}": Parts((f"output_hc_{part}.weight",)) for part in ("fn", "base", "scale")}
    )  # fmt: skip


def draw_numbers(key: str, shape: tuple[int, ...], config, rng) -> Numbers | None:
    """The experts of each token, all different."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.gate\.tid2eid", key)
    if not found:
        return None
    experts = [rng.permutation(config.n_routed_experts)[: shape[1]] for _ in range(shape[0])]
    return Numbers(f"blk.{found[1]}.ffn_gate_tid2eid.weight", np.stack(experts).astype(np.int64))


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    writer.add_attention_output_group_count(config.o_groups)
    writer.add_attention_output_lora_rank(config.o_lora_rank)
    writer.add_attention_compress_ratios([POOLS[kind] for kind in config.layer_types])
    writer.add_attention_compress_rope_freq_base(config.rope_parameters["compress"]["rope_theta"])
    writer.add_hyper_connection_count(config.hc_mult)
    writer.add_hyper_connection_sinkhorn_iterations(config.hc_sinkhorn_iters)
    writer.add_hyper_connection_epsilon(config.hc_eps)
    writer.add_hash_layer_count(config.mlp_layer_types.count("hash_moe"))
    writer.add_embedding_length_out(config.hidden_size * config.hc_mult)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SQRTSOFTPLUS)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_swiglu_clamp_exp([config.swiglu_limit] * config.num_hidden_layers)
    writer.add_swiglu_clamp_shexp([config.swiglu_limit] * config.num_hidden_layers)


def write_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(1)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(int(config.head_dim * config.partial_rotary_factor))


DEEPSEEK4 = Family(
    ARCH.DEEPSEEK4, transformers.DeepseekV4ForCausalLM, transformers.DeepseekV4Config, vocabulary.write_byte_level,
    write_keys=write_keys, write_heads=write_heads, rules=rules, draw_numbers=draw_numbers,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # A row of the longest prompt has two entries of long pools. Enough heads of the indexer that no pool has a negative product with
    # all of them. Limits so low that they apply.
    "deepseek4": Checkpoint(DEEPSEEK4, sizes(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, head_dim=32, q_lora_rank=20,
        partial_rotary_factor=0.25, sliding_window=20, o_groups=2, o_lora_rank=12, index_topk=12, index_head_dim=64,
        index_n_heads=16, layer_types=["sliding_attention", "compressed_sparse_attention"]
        + ["heavily_compressed_attention", "compressed_sparse_attention"],
        mlp_layer_types=["hash_moe"] + ["moe"] * 3, n_routed_experts=6, num_experts_per_tok=2, intermediate_size=16,
        n_shared_experts=1, routed_scaling_factor=1.5, swiglu_limit=1.0, hc_mult=4, hc_sinkhorn_iters=20,
        rope_parameters={
            "main": rope(partial_rotary_factor=0.25),
            "compress": rope("yarn", theta=160000.0, factor=4.0, original_max_position_embeddings=128,
                             partial_rotary_factor=0.25, attention_factor=1.0)})),
}  # fmt: skip
