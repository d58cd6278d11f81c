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


RENAMED = {
    "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj", "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2", "mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2", "mlp.gate.": "mlp.router.layer.",
    "embeddings.LayerNorm": "emb_ln",
}  # fmt: skip


def published(network: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict]:
    """The names and the configuration of the published model: the matrices of all experts below one another."""
    config, tensors = network.config, dict(network.state_dict())
    for layer in range(config.num_hidden_layers):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"layers.{layer}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            tensors[f"layers.{layer}.attn.Wqkv.{kind}"] = torch.cat(parts)
        if (up := tensors.pop(f"layers.{layer}.mlp.experts.up_proj.weight", None)) is not None:
            down = tensors.pop(f"layers.{layer}.mlp.experts.down_proj.weight").transpose(1, 2)
            tensors[f"layers.{layer}.mlp.experts.mlp.w1"] = up.reshape(-1, config.hidden_size)
            tensors[f"layers.{layer}.mlp.experts.mlp.w2"] = down.reshape(-1, config.hidden_size)
            tensors[f"layers.{layer}.mlp.experts.bias"] = torch.zeros(config.hidden_size)
    renamed = {}
    for name, values in tensors.items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        renamed[name] = values.contiguous()
    return renamed, dict(
        model_type="nomic_bert", architectures=["NomicBertModel"], activation_function="gelu", causal=False,
        expert_choice_router=False, layer_norm_epsilon=config.layer_norm_eps,
        max_trained_positions=config.max_position_embeddings, mlp_fc1_bias=True, mlp_fc2_bias=True,
        moe_every_n_layers=EVERY, moe_normalize_expert_weights=False, moe_top_k=USED, n_embd=config.hidden_size,
        n_head=config.num_attention_heads, n_inner=config.intermediate_size, n_layer=config.num_hidden_layers,
        n_positions=2048, num_experts=EXPERTS, num_shared_experts=0, parallel_block=False, prenorm=False,
        qkv_proj_bias=True, rotary_emb_base=config.rope_parameters["rope_theta"], rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False, rotary_emb_scale_base=None, scale_attn_by_inverse_layer_idx=False,
        type_vocab_size=config.type_vocab_size, vocab_size=config.vocab_size)  # fmt: skip
