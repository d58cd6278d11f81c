"""Tiny checkpoints of the families of Mamba: all layers are recurrent, or some attend."""

import gguf
import numpy as np
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint
from parts import Parts
from state_spaces import SQUEEZED, family, mamba2, small, write_kv_heads, write_mamba2_sizes


def mamba1(prefix: str) -> dict[str, Parts]:
    """The tensors of a Mamba 1 layer that the converter does not only rename."""
    negative = Parts(("ssm_a",), lambda values: [-np.exp(values)], lambda parts: np.log(-parts[0]))
    return {
        rf"{prefix}\.conv1d\.weight": Parts(("ssm_conv1d.weight",), **SQUEEZED),
        rf"{prefix}\.A_log": negative,
    }


def write_mamba1_sizes(writer: gguf.GGUFWriter, width: int, state: int, inner: int, rank: int) -> None:
    writer.add_ssm_conv_kernel(width)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)


def write_no_heads(writer: gguf.GGUFWriter, config) -> None:
    # Loaders need the keys of what these models have none of.
    writer.add_feed_forward_length(0)


def write_mamba_keys(writer: gguf.GGUFWriter, config) -> None:
    write_mamba1_sizes(
        writer, config.conv_kernel, config.state_size, config.intermediate_size, config.time_step_rank)  # fmt: skip
    writer.add_ssm_dt_b_c_rms(config.model_type == "falcon_mamba")


MAMBA = family(
    ARCH.MAMBA, "Mamba", write_keys=write_mamba_keys, write_heads=write_no_heads, writes_lengths=True,
    rules=lambda config: mamba1("mixer"),
)  # fmt: skip
FALCON_MAMBA = family(
    ARCH.MAMBA, "FalconMamba", write_keys=write_mamba_keys, write_heads=write_no_heads, writes_lengths=True,
    rules=lambda config: mamba1("mixer"),
)  # fmt: skip


def write_mamba2_keys(writer: gguf.GGUFWriter, config) -> None:
    write_mamba2_sizes(
        writer, config.conv_kernel, config.state_size, config.num_heads, config.head_dim, config.n_groups)  # fmt: skip


MAMBA2 = family(
    ARCH.MAMBA2, "Mamba2", write_keys=write_mamba2_keys, write_heads=write_no_heads, writes_lengths=True,
    rules=lambda config: mamba2("mixer", config.n_groups),
)  # fmt: skip


def write_jamba_keys(writer: gguf.GGUFWriter, config) -> None:
    inner = config.mamba_expand * config.hidden_size
    write_mamba1_sizes(writer, config.mamba_d_conv, config.mamba_d_state, inner, config.mamba_dt_rank)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


JAMBA_EXPERTS = {
    r"feed_forward\.experts\.gate_up_proj": Parts(parts.GATE_AND_UP, **parts.halves(1)),
    r"feed_forward\.experts\.down_proj": parts.DOWN,
}
JAMBA = family(
    ARCH.JAMBA, "Jamba", write_keys=write_jamba_keys, write_heads=write_kv_heads,
    rules=lambda config: mamba1("mamba") | JAMBA_EXPERTS,
)  # fmt: skip
# The converter writes this context length for all models. Transformers would scan in another order by default.
USUAL = dict(
    vocab_size=vocabulary.SIZE, hidden_size=40, num_hidden_layers=3, num_attention_heads=0, layer_norm_epsilon=1e-3,
    max_position_embeddings=2**20, conv_kernel=4, tie_word_embeddings=True,
)  # fmt: skip
MAMBA_SIZES = USUAL | dict(state_size=8, time_step_rank=6, use_associative_scan=False)

CHECKPOINTS: dict[str, Checkpoint] = {
    "mamba": Checkpoint(MAMBA, MAMBA_SIZES),
    # The norms of dt, B and C have their own epsilon, which the converter does not write.
    "mamba-falcon": Checkpoint(FALCON_MAMBA, MAMBA_SIZES | dict(mixer_rms_eps=1e-6, tie_word_embeddings=False)),
    "mamba2": Checkpoint(MAMBA2, USUAL | dict(num_heads=5, head_dim=16, n_groups=1, state_size=8)),
    "mamba2-groups": Checkpoint(MAMBA2, USUAL | dict(
        num_heads=4, head_dim=20, n_groups=2, state_size=8, tie_word_embeddings=False)),
    "jamba": Checkpoint(JAMBA, small(
        attn_layer_period=4, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=6,
        num_experts_per_tok=2, mamba_d_state=8, mamba_dt_rank=6, use_associative_scan=False)),
}  # fmt: skip
