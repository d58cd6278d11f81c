"""Tiny checkpoints of the families whose query, key and value projections are one tensor, grouped by heads in transformers."""

from functools import partial

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from llama_likes import LAYER_NORM
from parts import Parts


def small(**changes) -> dict:
    usual = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, rope_parameters=rope())
    values = sizes(**(usual | changes))
    return {name: value for name, value in values.items() if name not in ("num_key_value_heads", "rms_norm_eps")}


def sections(values: np.ndarray, counts: tuple[int, int, int], groups: int, head: int) -> list[np.ndarray]:
    """Queries, keys and values of groups of heads, each group with this number of heads of each kind."""
    grouped = values.reshape(groups, sum(counts) * head, *values.shape[1:])
    return np.split(grouped, np.cumsum(counts)[:2] * head, axis=1)


def ungrouped(name: str, queries: int, groups: int, head: int) -> Parts:
    """Queries, keys and values one after the other in a file, group by group in transformers."""
    counts = (queries // groups, 1, 1)

    def into(values: np.ndarray) -> list[np.ndarray]:
        parts = sections(values, counts, groups, head)
        return [np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])]

    def back(parts: list[np.ndarray]) -> np.ndarray:
        values = parts[0]
        split = np.split(values, np.cumsum([queries, groups]) * head)
        grouped = [part.reshape(groups, -1, *values.shape[1:]) for part in split]
        return np.concatenate(grouped, axis=1).reshape(values.shape)

    return Parts((name,), into, back)


def write_neox_heads(writer: gguf.GGUFWriter, config) -> None:
    head = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head * config.rope_parameters["partial_rotary_factor"]))
    writer.add_parallel_residual(config.use_parallel_residual)
    if config.hidden_act != "gelu":
        # The converter does not write this key: llama.cpp computes all forms of GELU alike.
        writer.add_hidden_act(config.hidden_act)


def neox_rules(config) -> dict[str, Parts]:
    heads = config.num_attention_heads
    fused = partial(ungrouped, queries=heads, groups=heads, head=config.hidden_size // heads)
    return {
        rf"attention\.query_key_value\.{kind}": fused(f"attn_qkv.{kind}") for kind in ("weight", "bias")
    }


def write_falcon_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(falcon_groups(config))
    writer.add_feed_forward_length(config.ffn_hidden_size)


def falcon_groups(config) -> int:
    return config.num_kv_heads if config.new_decoder_architecture else 1


def falcon_rules(config) -> dict[str, Parts]:
    head = config.hidden_size // config.num_attention_heads
    fused = ungrouped("attn_qkv.weight", config.num_attention_heads, falcon_groups(config), head)
    return {r"self_attention\.query_key_value\.weight": fused}


NEOX = Family(
    ARCH.GPTNEOX, transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig, vocabulary.write_byte_level,
    layer_norms=True, write_heads=write_neox_heads, rules=neox_rules,
)  # fmt: skip
FALCON = Family(
    ARCH.FALCON, transformers.FalconForCausalLM, transformers.FalconConfig, vocabulary.write_byte_level, layer_norms=True,
    write_heads=write_falcon_heads, writes_lengths=True, rules=falcon_rules,
)  # fmt: skip
NEOX_ROPE = rope(partial_rotary_factor=0.5)
FALCON_SIZES = small(layer_norm_epsilon=1e-3, tie_word_embeddings=True, ffn_hidden_size=48)

CHECKPOINTS: dict[str, Checkpoint] = {
    "gptneox": Checkpoint(NEOX, small(**LAYER_NORM, rope_parameters=NEOX_ROPE)),
    "gptneox-sequential": Checkpoint(
        NEOX, small(**LAYER_NORM, rope_parameters=NEOX_ROPE, use_parallel_residual=False, hidden_act="gelu_fast")),
    "falcon": Checkpoint(FALCON, FALCON_SIZES),
    # Two norms, and two heads of keys and values.
    "falcon-40b": Checkpoint(FALCON, FALCON_SIZES | dict(new_decoder_architecture=True, num_kv_heads=2)),
}  # fmt: skip
