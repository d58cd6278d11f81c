"""Tiny checkpoints of the families whose attention has a gate with a projection of its own."""

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import text_models
import vocabulary
from checkpoint import Checkpoint, Family, rope
from llama_likes import family, small, small_experts, write_window_pattern
from parts import Parts
from weights import ONE_ADDED

AFMOE = {
    r"self_attn\.gate_proj\.weight": Parts(("attn_gate.weight",)),
    r"mlp\.router\.gate\.weight": Parts(parts.ROUTER),
    r"mlp\.expert_bias": Parts(("exp_probs_b.bias",)),
    r"mlp\.experts\.gate_up_proj": Parts(parts.GATE_AND_UP, **parts.halves(1)),
    r"mlp\.experts\.down_proj": parts.DOWN,
    r"input_layernorm\.weight": Parts(("attn_norm.weight",)),
    r"post_attention_layernorm\.weight": Parts(("post_attention_norm.weight",)),
    r"pre_mlp_layernorm\.weight": Parts(("ffn_norm.weight",)),
    r"post_mlp_layernorm\.weight": Parts(("post_ffw_norm.weight",)),
}


def write_afmoe_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.num_dense_layers)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.route_scale)


def write_laguna_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.moe_routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_laguna_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count(config.num_attention_heads_per_layer)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    full, windowed = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    writer.add_rope_dimension_count(int(config.head_dim * full["partial_rotary_factor"]))
    writer.add_rope_dimension_count_swa(int(config.head_dim * windowed["partial_rotary_factor"]))
    writer.add_rope_freq_base_swa(windowed["rope_theta"])


def write_muse_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_logit_scale(config.output_multiplier)
    write_window_pattern(writer, config)


def write_muse_norms(writer: gguf.GGUFWriter, config) -> None:
    """The norms of heads, which have no weight in transformers; that of queries has the factor on scores."""
    for layer in range(config.num_hidden_layers):
        for name, value in (("attn_q_norm", config.qk_scale_factor), ("attn_k_norm", 1.0)):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.full(config.head_dim, value, dtype=np.float32))


def muse_logits(config, logits):
    cap = config.final_logit_softcapping
    return cap * (logits * config.output_multiplier / cap).tanh()


LAGUNA = family(
    ARCH.LAGUNA, "Laguna", write_keys=write_laguna_keys, write_heads=write_laguna_heads,
)  # fmt: skip
MUSE = Family(
    ARCH.MUSE_GLIMMER, text_models.causal("MuseGlimmer", muse_logits), transformers.MuseGlimmerTextConfig,
    vocabulary.write_byte_level, rotates_neighbours=True, norm_layout=ONE_ADDED, norm_mean=0.0,
    plain_norms=("model.norm.weight",), write_keys=write_muse_keys, write_tensors=write_muse_norms,
)  # fmt: skip
LAGUNA_SIZES = small_experts(
    head_dim=16, num_experts=6, shared_expert_intermediate_size=40, moe_routed_scaling_factor=1.5, rope_parameters={
        "sliding_attention": rope(theta=20000.0, partial_rotary_factor=1.0),
        "full_attention": rope("yarn", 500000.0, partial_rotary_factor=0.5, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                               original_max_position_embeddings=512)},
    max_position_embeddings=4096)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    "afmoe": Checkpoint(
        family(ARCH.AFMOE, "Afmoe", write_keys=write_afmoe_keys, rules=lambda config: AFMOE),
        small_experts(num_hidden_layers=4, head_dim=16, num_experts=6, num_shared_experts=1, num_dense_layers=1,
                      route_scale=1.5, sliding_window=20, mup_enabled=True)),
    # A gate for each head; layers with a window have other heads and another rotation.
    "laguna": Checkpoint(LAGUNA, LAGUNA_SIZES | dict(
        num_hidden_layers=4, layer_types=["full_attention"] + ["sliding_attention"] * 3, sliding_window=20,
        num_attention_heads_per_layer=[4, 2, 2, 2], gating="per-head")),
    "laguna-per-element": Checkpoint(LAGUNA, LAGUNA_SIZES | dict(sliding_window=0, gating="per-element")),
    "muse-glimmer": Checkpoint(MUSE, small(
        num_hidden_layers=4, head_dim=16, sliding_window=20, final_logit_softcapping=8.0, qk_scale_factor=1.7,
        output_multiplier=0.6, tie_word_embeddings=False)),
}  # fmt: skip
