"""Tiny checkpoints of the families whose heads of values are shorter than those of keys."""

import gguf
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes


def windowed_layers(config) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def write_mimo_keys(writer: gguf.GGUFWriter, config) -> None:
    # The converter writes numbers here.
    writer.add_sliding_window_pattern([int(windowed) for windowed in windowed_layers(config)])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_attn_value_scale(config.attention_value_scale)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def write_mimo_heads(writer: gguf.GGUFWriter, config) -> None:
    heads = config.num_key_value_heads
    writer.add_head_count_kv([2 * heads if windowed else heads for windowed in windowed_layers(config)])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.v_head_dim)
    writer.add_rope_dimension_count(
        int(config.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    )


MIMO2 = Family(
    ARCH.MIMO2, transformers.MiMoV2FlashForCausalLM, transformers.MiMoV2FlashConfig, vocabulary.write_byte_level,
    write_keys=write_mimo_keys, write_heads=write_mimo_heads, rules=lambda config: parts.EXPERTS | parts.SINKS,
)  # fmt: skip
ROTATION = dict(partial_rotary_factor=0.334)

CHECKPOINTS: dict[str, Checkpoint] = {
    "mimo2": Checkpoint(MIMO2, sizes(
        hidden_size=32, num_hidden_layers=4, num_key_value_heads=1, intermediate_size=48, head_dim=24, v_head_dim=16,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"], sliding_window=20,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, attention_value_scale=0.707,
        rope_parameters={
            "full_attention": rope(theta=5000000.0, **ROTATION), "sliding_attention": rope(theta=10000.0, **ROTATION)})),
}  # fmt: skip
