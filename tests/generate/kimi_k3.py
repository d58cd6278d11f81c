"""Tiny checkpoints of Kimi K3, whose layers read earlier residuals.

transformers has no class for this model. The reference below follows the published layout: modules of Kimi Linear and of
GLM 5.3 Flash where they fit, and the equations of the attention residuals, the activation, the gate and the latent experts.
"""

from types import SimpleNamespace

import gguf
import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from torch import nn
from transformers.models.glm5_next import modeling_glm5_next as glm
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

import hybrids
import vocabulary
from checkpoint import Checkpoint, Family
from parts import Parts


class KimiK3Config(transformers.KimiLinearConfig):
    """That of Kimi Linear, with what Kimi K3 adds. `hidden_act` is the activation after convolutions."""

    attn_res_block_size: int = 2
    situ_beta: float = 1.0
    situ_linear_beta: float = 2.0
    latent_size: int | None = None
    linear_lower_bound: float | None = None


def bounded(values: torch.Tensor, bound: float) -> torch.Tensor:
    return bound * torch.tanh(values / bound) if bound > 0 else values


def situ(config, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return bounded(gate, config.situ_beta) * torch.sigmoid(gate) * bounded(up, config.situ_linear_beta)


class FeedForward(kimi.KimiLinearMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(situ(self.config, self.gate_proj(x), self.up_proj(x)))


class Experts(nn.Module):
    def __init__(self, config, width: int):
        super().__init__()
        self.config, count, inner = config, config.num_local_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows = []
        for row, experts, shares in zip(x, chosen, weights):
            gates, ups = (self.gate_up_proj[experts] @ row).chunk(2, dim=-1)
            outputs = self.down_proj[experts] @ situ(self.config, gates, ups).unsqueeze(-1)
            rows.append((outputs.squeeze(-1) * shares[:, None]).sum(0))
        return torch.stack(rows)


class LatentExperts(nn.Module):
    """Experts whose rows may be shorter than those of the model. The router and the shared expert read the whole rows."""

    def __init__(self, config):
        super().__init__()
        width, self.is_latent = config.latent_size or config.hidden_size, config.latent_size is not None
        self.gate = kimi.KimiLinearTopkRouter(config)
        self.experts = Experts(config, width)
        self.shared_experts = FeedForward(config, config.moe_intermediate_size * config.n_shared_experts)
        if self.is_latent:
            self.routed_expert_down_proj = nn.Linear(config.hidden_size, width, bias=False)
            self.routed_expert_norm = kimi.KimiLinearRMSNorm(width, config.rms_norm_eps)
            self.routed_expert_up_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, chosen = self.gate(x)
        rows = self.routed_expert_down_proj(x) if self.is_latent else x
        routed = self.experts(rows.flatten(0, 1), chosen, weights).view(rows.shape)
        if self.is_latent:
            routed = self.routed_expert_up_proj(self.routed_expert_norm(routed))
        return routed + self.shared_experts(x)


class LatentAttention(kimi.KimiLinearAttention):
    """Without rotation, and with a gate for each value of the heads."""

    def __init__(self, config, layer: int):
        super().__init__(config, layer)
        self.g_proj = nn.Linear(config.hidden_size, self.num_heads * self.v_head_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries = self.q_proj(x) if self.q_proj else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        queries = queries.view(*x.shape[:2], -1, self.qk_head_dim).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        keys, values = self.expand_kv(self.kv_a_layernorm(latent)[:, None], shared[:, None])
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=self.scaling)
        return self.o_proj(attended.transpose(1, 2).flatten(2) * torch.sigmoid(self.g_proj(x)))


class DeltaAttention(kimi.KimiLinearDeltaAttention):
    """With one projection for the gate, and decays that may have a bound."""

    def __init__(self, config, layer: int):
        super().__init__(config, layer)
        self.forget_gate = glm.Glm5NextTextForgetGate(config)
        self.g_a_proj, self.g_b_proj = nn.Linear(config.hidden_size, self.qkv_dim, bias=False), nn.Identity()


class Scores(nn.Module):
    """A mean of the residual and of earlier ones, by how they match a vector: the published norm and projection are one product."""

    def __init__(self, config):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.empty(config.hidden_size)), config.rms_norm_eps

    def forward(self, kept: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        residuals = torch.stack([*kept, x])
        normed = residuals * torch.rsqrt(residuals.square().mean(-1, keepdim=True) + self.epsilon)
        return (torch.softmax(normed @ self.weight, dim=0)[..., None] * residuals).sum(0)


class Layer(nn.Module):
    def __init__(self, config, layer: int):
        super().__init__()
        recurs = config.layer_types[layer] == "linear_attention"
        self.self_attn = DeltaAttention(config, layer) if recurs else LatentAttention(config, layer)
        self.mlp = LatentExperts(config) if config.mlp_layer_types[layer] == "sparse" else FeedForward(config)
        self.input_layernorm = kimi.KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = kimi.KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn_res_score, self.ffn_res_score = Scores(config), Scores(config)
        self.keeps = layer % config.attn_res_block_size == 0

    def forward(self, kept: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Appends the residual to those that are kept, if the layer does, which then restarts from the mixer's output."""
        read = self.attn_res_score(kept, x) if kept else x
        mixed = self.self_attn(self.input_layernorm(read))
        if self.keeps:
            kept.append(x)
        x = mixed if self.keeps else x + mixed
        return x + self.mlp(self.post_attention_layernorm(self.ffn_res_score(kept, x)))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, layer) for layer in range(config.num_hidden_layers)])
        self.output_res_score = Scores(config)
        self.norm = kimi.KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        kept, x = [], self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(kept, x)
        return self.norm(self.output_res_score(kept, x))


class KimiK3Reference(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def tie_weights(self) -> None:
        assert not self.config.tie_word_embeddings

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids)))


def rules(config) -> dict[str, Parts]:
    # Larger than those that are drawn, so that bounded decays differ.
    more = 3.0 if config.linear_lower_bound else 0.0
    negative = Parts(("ssm_a",), lambda values: [-np.exp(values + more)], lambda parts: np.log(-parts[0]))
    names = {
        r"self_attn\.g_a_proj\.weight": "ssm_g.weight", r"self_attn\.g_proj\.weight": "attn_gate.weight",
        r"mlp\.routed_expert_down_proj\.weight": "ffn_routed_down.weight",
        r"mlp\.routed_expert_up_proj\.weight": "ffn_routed_up.weight",
        r"mlp\.routed_expert_norm\.weight": "ffn_routed_norm.weight",
        r"attn_res_score\.weight": "attn_res_score.weight", r"ffn_res_score\.weight": "ffn_res_score.weight",
        r"model\.output_res_score\.weight": "output_res_score.weight",
    }  # fmt: skip
    own = {pattern: Parts((name,)) for pattern, name in names.items()}
    return own | hybrids.kimi_rules(config) | {r"self_attn\.forget_gate\.A_log": negative}


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    hybrids.write_kimi_keys(writer, config)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_attn_res_block_size(config.attn_res_block_size)
    writer.add_activation_situ_beta(config.situ_beta)
    writer.add_activation_situ_linear_beta(config.situ_linear_beta)
    if config.latent_size:
        writer.add_expert_latent_length(config.latent_size)
    if config.linear_lower_bound:
        writer.add_kda_gate_lower_bound(config.linear_lower_bound)


def write_heads(writer: gguf.GGUFWriter, config) -> None:
    hybrids.write_kimi_heads(writer, config)
    writer.add_value_length(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)


FAMILY = Family(
    ARCH.KIMI_K3, KimiK3Reference, KimiK3Config, vocabulary.write_byte_level, write_keys=write_keys,
    write_heads=write_heads, rules=rules,
)  # fmt: skip

SIZES = hybrids.small(
    num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-3, kv_lora_rank=24, qk_nope_head_dim=16,
    qk_rope_head_dim=8, v_head_dim=12, linear_head_dim=16, linear_num_heads=2, num_local_experts=6,
    num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=2, routed_scaling_factor=1.5, n_group=1,
    topk_group=1, pad_token_id=0, tie_word_embeddings=False)  # fmt: skip
RECURS, ATTENDS = "linear_attention", "full_attention"

CHECKPOINTS: dict[str, Checkpoint] = {
    # Three residuals are kept. The norms of latent vectors have an epsilon of their own, 1e-6.
    "kimi-k3": Checkpoint(FAMILY, SIZES | dict(
        num_hidden_layers=6, layer_types=[RECURS, ATTENDS, RECURS, RECURS, ATTENDS, RECURS], attn_res_block_size=2,
        situ_beta=1.0, situ_linear_beta=2.0, latent_size=20, q_lora_rank=20, linear_lower_bound=-5.0)),
    # Experts on whole rows, values without a bound, decays without a bound, and two residuals that are kept.
    "kimi-k3-wide": Checkpoint(FAMILY, SIZES | dict(
        num_hidden_layers=4, layer_types=[ATTENDS, RECURS, RECURS, ATTENDS], attn_res_block_size=3, situ_beta=2.0,
        situ_linear_beta=0.0, q_lora_rank=None)),
}  # fmt: skip
