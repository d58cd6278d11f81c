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


def windowed_layers(config) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def write_step_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window_pattern(windowed_layers(config))
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.share_expert_dim)
    writer.add_expert_weights_scale(config.moe_router_scaling_factor)
    writer.add_swiglu_clamp_exp([float(limit) for limit in config.swiglu_limits])
    writer.add_swiglu_clamp_shexp([float(limit) for limit in config.swiglu_limits_shared])
    # In the layout of the converter: as many divisors as windowed layers have pairs.
    divisors = step_divisors(config.rope_parameters["full_attention"], config.head_dim // 2)
    writer.add_tensor("rope_freqs.weight", np.append(divisors, np.ones(config.head_dim // 4)).astype(np.float32))


def step_divisors(parameters: dict, rotary: int) -> np.ndarray:
    """[rotary / 2] divisors of the frequencies, the form of `llama3` scaling in files."""
    frequencies = parameters["rope_theta"] ** -(np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    rotations = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / parameters["factor"] + smooth)


def write_step_heads(writer: gguf.GGUFWriter, config) -> None:
    full, windowed = config.num_attention_heads, config.num_sliding_attention_heads
    writer.add_head_count([windowed if has_window else full for has_window in windowed_layers(config)])
    writer.add_head_count_kv([config.num_key_value_heads] * config.num_hidden_layers)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


STEP = Family(
    ARCH.STEP35, text_models.causal("Step3p7"), transformers.Step3p7TextConfig, vocabulary.write_byte_level,
    norm_layout=ONE_ADDED, norm_mean=0.0, write_keys=write_step_keys, write_heads=write_step_heads,
)  # fmt: skip
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
    # Layers without a window rotate half of a head. The limits are low, so that they apply.
    "step35": Checkpoint(STEP, small(
        num_hidden_layers=4, num_attention_heads=2, num_sliding_attention_heads=4, num_key_value_heads=2, head_dim=16,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"], sliding_window=20,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=16, share_expert_dim=24, moe_router_scaling_factor=1.5, swiglu_limits=[0, 0, 1, 1],
        swiglu_limits_shared=[0, 0, 1, 2], tie_word_embeddings=False, allow_global_per_layer_attribute_access=True,
        rope_parameters={
            "full_attention": rope("llama3", 500000.0, partial_rotary_factor=0.5, factor=2.0, low_freq_factor=1.0,
                                   high_freq_factor=32.0, original_max_position_embeddings=256),
            "sliding_attention": rope(theta=10000.0, partial_rotary_factor=1.0)})),
}  # fmt: skip
