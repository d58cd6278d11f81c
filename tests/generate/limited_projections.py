"""Tiny checkpoints of the families that limit queries, keys and values."""

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import vocabulary
from checkpoint import Checkpoint, Family, rope
from parts import Parts, transposed


def write_dbrx_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_feed_forward_length(config.ffn_config.ffn_hidden_size)
    writer.add_head_count_kv(config.attn_config.kv_n_heads)
    writer.add_clamp_kqv(config.attn_config.clip_qkv)
    writer.add_expert_count(config.ffn_config.moe_num_experts)
    writer.add_expert_used_count(config.ffn_config.moe_top_k)


def dbrx_rules(config) -> dict[str, Parts]:
    """The matrices of experts, which transformers stores below one another; those of the output transposed."""
    experts, size = config.ffn_config.moe_num_experts, config.ffn_config.ffn_hidden_size

    def divided(values: np.ndarray) -> np.ndarray:
        return values.reshape(experts, size, -1)

    def joined(values: np.ndarray) -> np.ndarray:
        return values.reshape(experts * size, -1)

    def plain(name: str) -> Parts:
        return Parts((name,), lambda values: [divided(values)], lambda parts: joined(parts[0]))

    mlp = r"ffn\.experts\.mlp"
    return {
        rf"{mlp}\.w1": plain("ffn_gate_exps.weight"),
        rf"{mlp}\.v1": plain("ffn_up_exps.weight"),
        rf"{mlp}\.w2": Parts(
            ("ffn_down_exps.weight",),
            lambda values: [transposed(divided(values))],
            lambda parts: joined(transposed(parts[0])),
        ),
    }


DBRX = Family(
    ARCH.DBRX, transformers.DbrxForCausalLM, transformers.DbrxConfig, vocabulary.write_byte_level, layer_norms=True,
    write_heads=write_dbrx_keys, writes_lengths=True, rules=dbrx_rules,
)  # fmt: skip



def dbrx_sizes(width: int, layers: int) -> dict:
    return dict(
        vocab_size=vocabulary.SIZE, d_model=width, n_heads=4, n_layers=layers, max_seq_len=512, layer_norm_epsilon=1e-5,
        attn_config=dict(kv_n_heads=2, clip_qkv=1.0, rope_theta=50000.0),
        ffn_config=dict(hidden_size=width, ffn_hidden_size=width // 2, moe_num_experts=6, moe_top_k=3),
        rope_parameters=rope(theta=50000.0),
    )  # fmt: skip


CHECKPOINTS: dict[str, Checkpoint] = {
    # A limit that a third of the values exceeds.
    "dbrx": Checkpoint(DBRX, dbrx_sizes(64, 3)),
    # Small enough to be stored as a directory too.
    "dbrx-small": Checkpoint(DBRX, dbrx_sizes(32, 2)),
}
