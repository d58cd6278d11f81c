"""Tiny checkpoints of the families whose heads of keys each attend to blocks of positions of their own."""

import gguf
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from parts import Parts
from weights import ONE_ADDED


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk_blocks)
    writer.add_indexer_block_size(config.index_block_size)
    writer.add_indexer_local_blocks(config.index_local_blocks)
    writer.add_feed_forward_length(config.dense_intermediate_size)


MINIMAX_3 = parts.EXPERTS | {
    r"mlp\.gate_up_proj\.weight": Parts(("ffn_gate.weight", "ffn_up.weight"), **parts.halves(0)),
    r"mlp\.shared_experts\.gate_up_proj\.weight": Parts(
        ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), **parts.halves(0)
    ),
} | {
    rf"self_attn\.indexer\.{name}\.weight": Parts((f"indexer.{name}.weight",))
    for name in ("q_proj", "k_proj", "q_norm", "k_norm")
}  # fmt: skip

FAMILY = Family(
    ARCH.MINIMAXM3, transformers.MiniMaxM3VLForCausalLM, transformers.MiniMaxM3VLTextConfig, vocabulary.write_byte_level,
    norm_layout=ONE_ADDED, norm_mean=0.0, write_keys=write_keys, writes_lengths=True, rules=lambda config: MINIMAX_3,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # Four of up to twenty blocks.
    "minimax-m3": Checkpoint(FAMILY, sizes(
        num_hidden_layers=3, head_dim=24, num_local_experts=6, num_experts_per_tok=2, intermediate_size=32,
        shared_intermediate_size=32, dense_intermediate_size=96, rotary_dim=12, routed_scaling_factor=1.5,
        index_n_heads=2, index_head_dim=20, index_topk_blocks=4, index_block_size=16, index_local_blocks=1,
        mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        rope_parameters=rope(theta=10000.0, partial_rotary_factor=0.5)), draw=5),
    # Three of up to 36 blocks, of which two are the last ones in any case. Blocks do not end with KV blocks.
    "minimax-m3-local": Checkpoint(FAMILY, sizes(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
        num_local_experts=4, num_experts_per_tok=2, intermediate_size=16, shared_intermediate_size=16,
        dense_intermediate_size=48, rotary_dim=8, index_n_heads=3, index_head_dim=16, index_topk_blocks=3,
        index_block_size=9, index_local_blocks=2, mlp_layer_types=["dense", "sparse"],
        layer_types=["full_attention", "minimax_m3_sparse"],
        rope_parameters=rope(theta=10000.0, partial_rotary_factor=0.5)), draw=3),
}  # fmt: skip
