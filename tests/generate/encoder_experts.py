"""Nomic BERT with experts, for which transformers has no class: its own layers with other feed-forwards, in plain PyTorch."""

import gguf
import torch
import transformers
from torch.nn import functional

EXPERTS, USED, EVERY = 5, 2, 2


class Dense(torch.nn.Module):
    """Two projections with biases, and GELU between them."""

    def __init__(self, config):
        super().__init__()
        self.up_proj = torch.nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.gelu(self.up_proj(hidden)))


class Matrices(torch.nn.Module):
    """A matrix of each expert."""

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(EXPERTS, outputs, inputs))


class Experts(torch.nn.Module):
    """The sum of the chosen experts, weighted by a softmax over all of them. They have no gates and no biases."""

    def __init__(self, config):
        super().__init__()
        self.gate = torch.nn.Linear(config.hidden_size, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleDict({
            "up_proj": Matrices(config.intermediate_size, config.hidden_size),
            "down_proj": Matrices(config.hidden_size, config.intermediate_size),
        })  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(hidden).softmax(dim=-1).topk(USED, dim=-1)
        up, down = (self.experts[name].weight for name in ("up_proj", "down_proj"))
        inner = functional.gelu(torch.einsum("...h,...eih->...ei", hidden, up[chosen]))
        return torch.einsum("...e,...ei,...ehi->...h", weights, inner, down[chosen])


class NomicBertModel(transformers.NomicBertModel):
    """Biases everywhere, and experts in every second layer."""

    def __init__(self, config):
        super().__init__(config)
        for number, layer in enumerate(self.layers):
            layer.mlp = Experts(config) if number % EVERY == 1 else Dense(config)
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(layer.self_attn, name, torch.nn.Linear(config.hidden_size, config.hidden_size))


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_moe_every_n_layers(EVERY)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
