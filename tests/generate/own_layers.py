"""A tiny checkpoint of the Llama Nemotron models, whose layers have heads and feed-forwards of their own, or lack them.

transformers has no class for them. Each layer is one of its Llama with other modules.
"""

import gguf
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes


class Nothing(torch.nn.Module):
    """In place of attention or a feed-forward that a layer lacks."""

    def __init__(self, returned: int):
        super().__init__()
        self.returned = returned

    def forward(self, *positional, hidden_states=None, **options):
        zeros = torch.zeros_like(positional[0] if positional else hidden_states)
        return (zeros, None) if self.returned == 2 else zeros


class Matrix(torch.nn.Module):
    """One matrix in place of attention."""

    def __init__(self, width: int):
        super().__init__()
        self.linear_attn = torch.nn.Linear(width, width, bias=False)

    def forward(self, hidden_states: torch.Tensor, **options):
        return self.linear_attn(hidden_states), None


class NemotronNasConfig(transformers.LlamaConfig):
    model_type = "nemotron-nas"
    block_configs: list | None = None

    @property
    def kv_heads_of_layers(self) -> list[int]:
        shared = [block["attention"]["n_heads_in_group"] for block in self.block_configs]
        return [self.num_attention_heads // group if group else 0 for group in shared]


def changed(config, **sizes):
    return transformers.LlamaConfig(**(config.to_dict() | dict(model_type="llama") | sizes))


class LlamaForCausalLM(transformers.LlamaForCausalLM):
    config_class = NemotronNasConfig

    def __init__(self, config):
        super().__init__(config)
        for number, (layer, block) in enumerate(zip(self.model.layers, config.block_configs)):
            attention, width = block["attention"], width_of(config, block)
            shared = attention["n_heads_in_group"]
            if shared:
                own = changed(config, num_key_value_heads=config.num_attention_heads // shared)
                own._attn_implementation = "eager"
                layer.self_attn = LlamaAttention(own, number)
            elif attention["replace_with_linear"]:
                layer.self_attn = Matrix(config.hidden_size)
            else:
                layer.self_attn, layer.input_layernorm = Nothing(2), torch.nn.Identity()
            if width:
                layer.mlp = LlamaMLP(changed(config, intermediate_size=width))
            else:
                layer.mlp, layer.post_attention_layernorm = Nothing(1), torch.nn.Identity()


def width_of(config, block: dict) -> int:
    factor = block["ffn"]["ffn_mult"]
    return 0 if factor is None else -(-int(2 * factor * config.hidden_size / 3) // 256) * 256


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_feed_forward_length([width_of(config, block) for block in config.block_configs])


def write_heads(writer: gguf.GGUFWriter, config) -> None:
    heads = config.num_attention_heads
    linear = [block["attention"]["replace_with_linear"] for block in config.block_configs]
    writer.add_head_count([heads if kv or matrix else 0 for kv, matrix in zip(config.kv_heads_of_layers, linear)])
    writer.add_head_count_kv(config.kv_heads_of_layers)
    writer.add_key_length(config.hidden_size // heads)
    writer.add_value_length(config.hidden_size // heads)


DECI = Family(
    ARCH.DECI, LlamaForCausalLM, NemotronNasConfig, vocabulary.write_byte_level, rotates_neighbours=True,
    writes_lengths=True, write_keys=write_keys, write_heads=write_heads,
)  # fmt: skip


def block(group: int | None, factor: float | None, is_matrix: bool = False) -> dict:
    return dict(attention=dict(n_heads_in_group=group, no_op=group is None and not is_matrix, replace_with_linear=is_matrix),
                ffn=dict(ffn_mult=factor, no_op=factor is None, replace_with_linear=False))  # fmt: skip


CHECKPOINTS: dict[str, Checkpoint] = {
    # Every kind of layer: usual ones with other heads and widths, a matrix, no attention, no feed-forward, neither.
    "deci": Checkpoint(DECI, sizes(
        hidden_size=32, num_hidden_layers=7, num_attention_heads=4, rope_parameters=rope(),
        block_configs=[block(2, 1.0), block(None, 14.0, is_matrix=True), block(4, 5.0), block(None, 1.0), block(1, None),
                       block(None, None), block(2, 2.0)])),
}  # fmt: skip
