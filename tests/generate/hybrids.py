"""Tiny checkpoints of the families that mix attention with recurrent layers."""

from dataclasses import replace

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH
from transformers.models.bailing_hybrid import modeling_bailing_hybrid
from transformers.models.glm5_next import modeling_glm5_next
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.qwen4_exp import modeling_qwen4_exp

import parts
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from parts import Parts
from weights import ONE_ADDED


def compute_serially() -> None:
    """Makes transformers compute the delta rule token by token, for prompts too. Its form in chunks rounds differently."""
    for module in (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe, modeling_qwen4_exp):
        module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule
    for module in (modeling_kimi_linear, modeling_bailing_hybrid, modeling_glm5_next):
        module.chunk_kimi_delta_attention = module.recurrent_kimi_delta_attention


DELTA_DECAY = {
    r"linear_attn\.A_log": Parts(("ssm_a",), lambda values: [-np.exp(values)], lambda parts: np.log(-parts[0])),
    r"linear_attn\.dt_bias": Parts(("ssm_dt.bias",)),
}


def convolution(prefix: str) -> dict[str, Parts]:
    """The weights [channels, 1, width] of a depthwise convolution, without the middle dimension."""
    return {
        rf"{prefix}\.conv1d\.weight": Parts(
            ("ssm_conv1d.weight",), lambda values: [values[:, 0]], lambda parts: parts[0][:, None]
        )
    }


def grouped_projections(config) -> dict[str, Parts]:
    """Queries, keys, values and gates: per key head in transformers, one after the other in a file."""
    keys, width = config.linear_num_key_heads, config.linear_key_head_dim
    values_of_key = config.linear_num_value_heads // keys * config.linear_value_head_dim
    splits = np.cumsum([width, width, values_of_key])

    def into(values: np.ndarray) -> list[np.ndarray]:
        hidden = values.shape[-1]
        pieces = np.split(values.reshape(keys, -1, hidden), splits, axis=1)
        query, key, value, gate = (piece.reshape(-1, hidden) for piece in pieces)
        return [np.concatenate([query, key, value]), gate]

    def back(parts: list[np.ndarray]) -> np.ndarray:
        hidden = parts[0].shape[-1]
        pieces = [*np.split(parts[0], [keys * width, 2 * keys * width]), parts[1]]
        return np.concatenate([piece.reshape(keys, -1, hidden) for piece in pieces], axis=1).reshape(-1, hidden)

    return {r"linear_attn\.in_proj_qkvz\.weight": Parts(("attn_qkv.weight", "attn_gate.weight"), into, back)}


def tiled(config, rule: Parts, first: int = 0, axis: int = 0) -> Parts:
    """A rule whose values after index `first` of `axis` are also permuted: value head h uses key head h mod H_k in the file."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads

    def swap(part: np.ndarray, outer: int, inner: int) -> np.ndarray:
        moved = np.moveaxis(part, axis, 0)
        heads = moved[first:].reshape(outer, inner, -1, *moved.shape[1:])
        heads = heads.swapaxes(0, 1).reshape(moved[first:].shape)
        return np.moveaxis(np.concatenate([moved[:first], heads]), 0, axis)

    return Parts(
        rule.names,
        lambda part: [swap(stored, keys, values // keys) for stored in rule.into_file(part)],
        lambda parts: rule.out_of_file([swap(part, values // keys, keys) for part in parts]),
    )


def tiled_heads(config) -> dict[str, Parts]:
    """The rules of `qwen35` files: every tensor with value heads is permuted, `out_proj` along its columns."""
    query_and_key = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    rules = DELTA_DECAY | {
        r"linear_attn\.in_proj_z\.weight": Parts(("attn_gate.weight",)),
        r"linear_attn\.in_proj_a\.weight": Parts(("ssm_alpha.weight",)),
        r"linear_attn\.in_proj_b\.weight": Parts(("ssm_beta.weight",)),
    }
    mixed = convolution("linear_attn") | {r"linear_attn\.in_proj_qkv\.weight": Parts(("attn_qkv.weight",))}
    return (
        {name: tiled(config, rule) for name, rule in rules.items()}
        | {name: tiled(config, rule, first=query_and_key) for name, rule in mixed.items()}
        | {r"linear_attn\.out_proj\.weight": tiled(config, Parts(("ssm_out.weight",)), axis=1)}
    )


def write_delta_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    # Files from before the key of the layers have the interval only.
    if writer.arch != gguf.MODEL_ARCH_NAMES[ARCH.QWEN3NEXT]:
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    attends = [kind != "linear_attention" for kind in config.layer_types]
    writer.add_full_attention_interval(attends.index(True) + 1)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    if sections := config.rope_parameters.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    if experts := getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def delta_family(architecture: ARCH, name: str, config: str, rules) -> Family:
    return Family(
        architecture,
        getattr(transformers, f"{name}ForCausalLM"),
        getattr(transformers, config),
        vocabulary.write_byte_level,
        norm_layout=ONE_ADDED,
        norm_mean=0.0,
        plain_norms=("linear_attn.norm.weight",),
        write_keys=write_delta_keys,
        rules=rules,
    )


QWEN3_NEXT = delta_family(
    ARCH.QWEN3NEXT, "Qwen3Next", "Qwen3NextConfig",
    lambda config: parts.EXPERTS | DELTA_DECAY | convolution("linear_attn") | grouped_projections(config),
)  # fmt: skip
QWEN35 = delta_family(ARCH.QWEN35, "Qwen3_5", "Qwen3_5TextConfig", tiled_heads)
QWEN35_MOE = delta_family(
    ARCH.QWEN35MOE, "Qwen3_5Moe", "Qwen3_5MoeTextConfig", lambda config: parts.EXPERTS | tiled_heads(config)
)


def delta_rules(config) -> dict[str, Parts]:
    convolutions = Parts(
        tuple(f"ssm_conv1d_{kind}.weight" for kind in "qkv"),
        lambda values: [part[None] for part in np.split(values, 3)],
        lambda parts: np.concatenate([part[0] for part in parts]),
    )
    return parts.EXPERTS | parts.latent(config) | {
        r"self_attn\.forget_gate\.dt_bias": Parts(("ssm_dt.bias",)),
        r"self_attn\.conv1d\.weight": convolutions,
        r"self_attn\.o_norm\.weight": Parts(("ssm_norm.weight",)),
        r"self_attn\.b_proj\.weight": Parts(("ssm_beta.weight",)),
    }  # fmt: skip


def kimi_rules(config) -> dict[str, Parts]:
    negative = Parts(("ssm_a",), lambda values: [-np.exp(values)], lambda parts: np.log(-parts[0]))
    return delta_rules(config) | {r"self_attn\.forget_gate\.A_log": negative} | {
        rf"self_attn\.(forget_gate\.)?{kind}_{part}_proj\.weight": Parts((f"ssm_{kind}_{part}.weight",))
        for kind in "fg" for part in "ab"
    }  # fmt: skip


def write_kimi_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def ling3_rules(config, more: float = 0.0) -> dict[str, Parts]:
    """The rates of decays are `more` than those of the model."""
    rates = Parts(("ssm_a",), lambda values: [np.exp(values + more)[:, None]], lambda parts: np.log(parts[0][:, 0]))
    gates = {"full_attention": "attn_gate", "linear_attention": "ssm_g_a"}
    return delta_rules(config) | {
        r"self_attn\.forget_gate\.A_log": rates,
        r"self_attn\.forget_gate\.f_proj\.weight": Parts(("ssm_f_a.weight",)),
    } | {
        rf"{layer}\.self_attn\.g_proj\.weight": Parts((f"{gates[kind]}.weight",))
        for layer, kind in enumerate(config.layer_types)
    }  # fmt: skip


def write_ling3_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    writer.add_kda_safe_gate(config.kda_safe_gate)
    writer.add_kda_gate_lower_bound(config.kda_lower_bound)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.n_shared_experts)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def write_kimi_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv([1 if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


KIMI_LINEAR = Family(
    ARCH.KIMI_LINEAR, transformers.KimiLinearForCausalLM, transformers.KimiLinearConfig, vocabulary.write_byte_level,
    write_keys=write_kimi_keys, write_heads=write_kimi_heads, rules=kimi_rules,
)  # fmt: skip

LING3 = Family(
    ARCH.BAILINGMOE3, transformers.BailingHybridForCausalLM, transformers.BailingHybridConfig, vocabulary.write_byte_level,
    write_keys=write_ling3_keys, write_heads=write_kimi_heads, rules=ling3_rules,
)  # fmt: skip


def small(**changes) -> dict:
    usual = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, tie_word_embeddings=True)
    return sizes(**(usual | changes))


def delta(**changes) -> dict:
    """Sizes with two value heads for each key head."""
    usual = dict(
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
    )  # fmt: skip
    return small(**(usual | changes))


EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12)
ALTERNATING = ["linear_attention", "full_attention"] * 2
ROPE = rope(theta=1000000.0, partial_rotary_factor=0.5)
SECTIONS = ROPE | dict(mrope_section=[2, 1, 1], mrope_interleaved=True)

LING3_SIZES = small(
    num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-6, kv_lora_rank=24, q_lora_rank=None,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, head_dim=16, layer_group_size=2, num_local_experts=8,
    num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1, routed_scaling_factor=1.5, n_group=4,
    topk_group=2, first_k_dense_replace=1, pad_token_id=0, eos_token_id=2, rope_theta=20000.0,
    tie_word_embeddings=False)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # In transformers the norm of the latent vector has its own epsilon, 1e-6; the others get the same one here.
    "kimi-linear": Checkpoint(KIMI_LINEAR, small(
        num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-6, kv_lora_rank=24, q_lora_rank=None,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, linear_head_dim=16, linear_num_heads=2,
        layer_types=["linear_attention", "full_attention"] * 2, num_local_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=1, routed_scaling_factor=1.5, n_group=1, topk_group=1, pad_token_id=0,
        tie_word_embeddings=False)),
    # With larger rates than those that are drawn decays differ.
    "bailingmoe3": Checkpoint(replace(LING3, rules=lambda config: ling3_rules(config, more=3.0)), LING3_SIZES),
    "qwen3next": Checkpoint(QWEN3_NEXT, delta(**EXPERTS, norm_topk_prob=True, rope_parameters=ROPE), draw=1),
    "qwen35": Checkpoint(QWEN35, delta(rope_parameters=SECTIONS, layer_types=ALTERNATING)),
    "qwen35moe": Checkpoint(QWEN35_MOE, {
        key: value for key, value in delta(**EXPERTS, rope_parameters=SECTIONS).items() if key != "intermediate_size"}),
}  # fmt: skip
