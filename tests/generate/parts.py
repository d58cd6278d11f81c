"""Rules for tensors that llama.cpp's converter does not only rename: one tensor of transformers becomes one or several in a file."""

import re
from dataclasses import dataclass
from typing import Callable

import numpy as np


@dataclass(frozen=True)
class Parts:
    """The tensors of a file that hold one tensor of transformers, and the conversions in both directions."""

    names: tuple[str, ...]
    into_file: Callable[[np.ndarray], list[np.ndarray]] = lambda values: [values]
    out_of_file: Callable[[list[np.ndarray]], np.ndarray] = lambda parts: parts[0]


def transposed(values: np.ndarray) -> np.ndarray:
    return values.swapaxes(-1, -2)


def halves(axis: int, transform: Callable[[np.ndarray], np.ndarray] = lambda values: values) -> dict[str, Callable]:
    """Two matrices, one after the other along an axis of the transformed tensor."""
    return dict(
        into_file=lambda values: np.split(transform(values), 2, axis=axis),
        out_of_file=lambda parts: transform(np.concatenate(parts, axis=axis)),
    )


def last_neighbours(head: int, rotated: int) -> dict[str, Callable]:
    """Rows of heads whose last ones rotate: pairs of them are neighbours in a file, and in two halves in transformers."""

    def swap(values: np.ndarray, first: int, second: int) -> np.ndarray:
        heads = values.reshape(-1, head, *values.shape[1:]).copy()
        last = heads[:, head - rotated :]
        swapped = last.reshape(len(heads), first, second, *values.shape[1:]).swapaxes(1, 2)
        heads[:, head - rotated :] = swapped.reshape(last.shape)
        return heads.reshape(values.shape)

    return dict(
        into_file=lambda values: [swap(values, 2, rotated // 2)],
        out_of_file=lambda parts: swap(parts[0], rotated // 2, 2),
    )


def every_other(axis: int, transform: Callable[[np.ndarray], np.ndarray] = lambda values: values) -> dict[str, Callable]:
    """Two matrices with alternating rows along an axis of the transformed tensor."""

    def back(parts: list[np.ndarray]) -> np.ndarray:
        shape = list(parts[0].shape)
        shape[axis] *= 2
        return transform(np.stack(parts, axis=axis + 1).reshape(shape))

    def into(values: np.ndarray) -> list[np.ndarray]:
        transformed = np.moveaxis(transform(values), axis, 0)
        return [np.moveaxis(part, 0, axis) for part in (transformed[::2], transformed[1::2])]

    return dict(into_file=into, out_of_file=back)


TRANSPOSED = dict(into_file=lambda values: [transposed(values)], out_of_file=lambda parts: transposed(parts[0]))
GATE_AND_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
DOWN = Parts(("ffn_down_exps.weight",))
CORRECTION = {r"mlp\.gate\.e_score_correction_bias": Parts(("exp_probs_b.bias",))}

# Keys are patterns of the name after the number of the layer, or with it; outside of layers of the whole name.
EXPERTS = CORRECTION | {
    r"mlp\.experts\.gate_up_proj": Parts(GATE_AND_UP, **halves(1)),
    r"mlp\.experts\.down_proj": DOWN,
    # The gate of a shared expert is one row, stored as a vector.
    r"mlp\.shared_expert_gate\.weight": Parts(
        ("ffn_gate_inp_shexp.weight",), lambda values: [values.reshape(-1)], lambda parts: parts[0].reshape(1, -1)
    ),
}
GPT_OSS = {
    r"mlp\.experts\.gate_up_proj": Parts(GATE_AND_UP, **every_other(1, transposed)),
    r"mlp\.experts\.gate_up_proj_bias": Parts(("ffn_gate_exps.bias", "ffn_up_exps.bias"), **every_other(1)),
    r"mlp\.experts\.down_proj": Parts(DOWN.names, **TRANSPOSED),
    r"mlp\.experts\.down_proj_bias": Parts(("ffn_down_exps.bias",)),
    r"self_attn\.sinks": Parts(("attn_sinks.weight",)),
}
LLAMA4 = {
    r"feed_forward\.experts\.gate_up_proj": Parts(GATE_AND_UP, **halves(1, transposed)),
    r"feed_forward\.experts\.down_proj": Parts(DOWN.names, **TRANSPOSED),
}
GEMMA4 = {
    r"experts\.gate_up_proj": Parts(("ffn_gate_up_exps.weight",)),
    r"experts\.down_proj": DOWN,
    r"router\.scale": Parts(("ffn_gate_inp.scale",)),
    r"router\.per_expert_scale": Parts(("ffn_down_exps.scale",)),
    r"layer_scalar": Parts(("layer_output_scale.weight",)),
}

ROUTER = ("ffn_gate_inp.weight",)
GRANITE_MOE = {
    r"block_sparse_moe\.router\.weight": Parts(ROUTER),
    r"block_sparse_moe\.experts\.gate_up_proj": Parts(GATE_AND_UP, **halves(1)),
    r"block_sparse_moe\.experts\.down_proj": DOWN,
    r"shared_mlp\.input_linear\.weight": Parts(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), **halves(0)),
    r"shared_mlp\.output_linear\.weight": Parts(("ffn_down_shexp.weight",)),
}
# The shared expert's gate and up projection in one tensor.
GRANITE_MOE_FUSED = GRANITE_MOE | {r"shared_mlp\.input_linear\.weight": Parts(("ffn_up_shexp.weight",))}
SINKS = {r"self_attn\.sinks": Parts(("attn_sinks.weight",))}
HUNYUAN3 = EXPERTS | {r"mlp\.e_score_correction_bias": Parts(("exp_probs_b",))}
ERNIE_MOE = EXPERTS | {
    r"mlp\.gate\.moe_statics\.e_score_correction_bias": Parts(
        ("exp_probs_b.bias",), lambda values: [values.reshape(-1)], lambda parts: parts[0].reshape(1, -1)
    ),
}
MINIMAX = EXPERTS | {r"mlp\.e_score_correction_bias": Parts(("exp_probs_b.bias",))}
HUNYUAN_MOE = EXPERTS | {r"mlp\.gate\.wg\.weight": Parts(ROUTER)} | {
    rf"mlp\.shared_mlp\.{name}_proj\.weight": Parts((f"ffn_{name}_shexp.weight",)) for name in ("gate", "up", "down")
}


def latent(config) -> dict[str, Parts]:
    """The key and value projection of the latent vector as two tensors; the one of the keys is transposed, to apply to queries."""
    heads, key, value = config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim

    def into(values: np.ndarray) -> list[np.ndarray]:
        keys, values = np.split(values.reshape(heads, key + value, -1), [key], axis=1)
        return [transposed(keys), values]

    def back(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([transposed(parts[0]), parts[1]], axis=1).reshape(heads * (key + value), -1)

    return {r"self_attn\.kv_b_proj\.weight": Parts(("attn_k_b.weight", "attn_v_b.weight"), into, back)}


# Tensors of layers that files have outside of them.
OUTSIDE = {"per_layer_token_embd.weight"}


def find(rules: dict[str, Parts], key: str) -> Parts | None:
    """The rule for a tensor of transformers, with the names of its tensors in the file."""
    found = re.fullmatch(r"(?:model|gpt_neox|backbone|transformer)\.(?:layers|h|blocks)\.(\d+)\.(.+)", key)
    if not found:
        return next((parts for pattern, parts in rules.items() if re.fullmatch(pattern, key)), None)
    layer, rest = found.groups()
    for pattern, parts in rules.items():
        if re.fullmatch(pattern, rest) or re.fullmatch(pattern, f"{layer}.{rest}"):
            names = tuple(name if name in OUTSIDE else f"blk.{layer}.{name}" for name in parts.names)
            return Parts(names, parts.into_file, parts.out_of_file)
    return None
