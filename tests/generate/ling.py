"""Tiny checkpoints of Ling and Ring, whose layers have experts and are those of other classes in transformers."""

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes


def write_experts(writer: gguf.GGUFWriter, config, count: int, used: int, shared: int) -> None:
    writer.add_expert_count(count)
    writer.add_expert_used_count(used)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(shared)
    writer.add_expert_weights_norm(True)


def write_ling_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config, config.moe_num_experts, config.moe_k, config.moe_num_shared_experts)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_leading_dense_block_count(0)
    writer.add_expert_weights_scale(1.0)


def write_ling2_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config, config.n_routed_experts, config.num_experts_per_tok, config.n_shared_experts)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def without_bias(config) -> dict[str, parts.Parts]:
    """ERNIE's experts, but files have no bias of the router's scores: it is 0."""
    zeros = np.zeros((1, config.moe_num_experts), np.float32)
    name = r"mlp\.gate\.moe_statics\.e_score_correction_bias"
    return parts.EXPERTS | {name: parts.Parts((), lambda values: [], lambda read: zeros)}


LING = Family(
    ARCH.BAILINGMOE, transformers.Ernie4_5_MoeForCausalLM, transformers.Ernie4_5_MoeConfig, vocabulary.write_byte_level,
    write_keys=write_ling_keys, rules=without_bias,
)  # fmt: skip
LING2 = Family(
    ARCH.BAILINGMOE2, transformers.Glm4MoeForCausalLM, transformers.Glm4MoeConfig, vocabulary.write_byte_level,
    write_keys=write_ling2_keys, fuses_qkv=True,
)  # fmt: skip
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2)

CHECKPOINTS: dict[str, Checkpoint] = {
    "bailingmoe": Checkpoint(LING, sizes(**SMALL) | dict(
        moe_num_experts=8, moe_k=3, moe_intermediate_size=24, moe_num_shared_experts=2, moe_layer_start_index=0,
        rope_parameters=rope(theta=600000.0)), draw=1),
    "bailingmoe2": Checkpoint(LING2, sizes(**SMALL) | dict(
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1,
        n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True, head_dim=16, attention_bias=False,
        use_qk_norm=True, rope_parameters=rope(theta=600000.0, partial_rotary_factor=0.5))),
}  # fmt: skip
