"""Tiny checkpoints of the families that mix attention with short convolutions or Mamba layers."""

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from llama_likes import GRANITE_SCALES, write_granite_keys
from parts import Parts

SQUEEZED = dict(into_file=lambda values: [values[:, 0]], out_of_file=lambda parts: parts[0][:, None])


def family(architecture: ARCH, name: str, **options) -> Family:
    """A family with transformers' classes NAMEForCausalLM and NAMEConfig."""
    model, config = getattr(transformers, f"{name}ForCausalLM"), getattr(transformers, f"{name}Config")
    return Family(architecture, model, config, vocabulary.write_byte_level, **options)


def mamba2(prefix: str, groups: int) -> dict[str, Parts]:
    """The tensors of a Mamba 2 layer. A and D are columns, the norm is a matrix with a row for each group."""
    column = dict(into_file=lambda values: [values[:, None]], out_of_file=lambda parts: parts[0][:, 0])
    negative = dict(
        into_file=lambda values: [-np.exp(values)[:, None]], out_of_file=lambda parts: np.log(-parts[0][:, 0])
    )
    grouped = dict(
        into_file=lambda values: [values.reshape(groups, -1)], out_of_file=lambda parts: parts[0].reshape(-1)
    )
    return {
        rf"{prefix}\.in_proj\.weight": Parts(("ssm_in.weight",)),
        rf"{prefix}\.conv1d\.weight": Parts(("ssm_conv1d.weight",), **SQUEEZED),
        rf"{prefix}\.conv1d\.bias": Parts(("ssm_conv1d.bias",)),
        rf"{prefix}\.A_log": Parts(("ssm_a",), **negative),
        rf"{prefix}\.D": Parts(("ssm_d",), **column),
        rf"{prefix}\.dt_bias": Parts(("ssm_dt.bias",)),
        rf"{prefix}\.norm\.weight": Parts(("ssm_norm.weight",), **grouped),
        rf"{prefix}\.out_proj\.weight": Parts(("ssm_out.weight",)),
    }


def write_mamba2_sizes(writer: gguf.GGUFWriter, width: int, state: int, heads: int, head_dim: int, groups: int) -> None:
    writer.add_ssm_conv_kernel(width)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_inner_size(heads * head_dim)
    writer.add_ssm_time_step_rank(heads)


def write_prefixed_mamba2_keys(writer: gguf.GGUFWriter, config) -> None:
    write_mamba2_sizes(
        writer, config.mamba_d_conv, config.mamba_d_state, config.mamba_n_heads, config.mamba_d_head,
        config.mamba_n_groups)  # fmt: skip


def write_kv_heads(writer: gguf.GGUFWriter, config) -> None:
    """The key and value heads of each layer, 0 where it does not attend."""
    heads = config.num_key_value_heads
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in config.layer_types])


def write_granite_hybrid_keys(writer: gguf.GGUFWriter, config) -> None:
    write_granite_keys(writer, config)
    write_prefixed_mamba2_keys(writer, config)
    writer.add_rope_scaling_finetuned(False)


def granite_hybrid_rules(config) -> dict[str, Parts]:
    dense = {
        r"shared_mlp\.input_linear\.weight": Parts(("ffn_gate.weight", "ffn_up.weight"), **parts.halves(0)),
        r"shared_mlp\.output_linear\.weight": Parts(("ffn_down.weight",)),
    }
    return mamba2("mamba", config.mamba_n_groups) | (parts.GRANITE_MOE if config.num_local_experts else dense)


def write_nemotron_keys(writer: gguf.GGUFWriter, config) -> None:
    write_mamba2_sizes(
        writer, config.conv_kernel, config.ssm_state_size, config.mamba_num_heads, config.mamba_head_dim,
        config.n_groups)  # fmt: skip
    writer.add_rope_scaling_finetuned(False)
    if "moe" in config.layer_types:
        lengths = [config.moe_intermediate_size if kind == "moe" else 0 for kind in config.layer_types]
        writer.add_feed_forward_length(lengths)
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        if config.moe_latent_size:
            writer.add_moe_latent_size(config.moe_latent_size)
    else:
        writer.add_feed_forward_length([config.intermediate_size if kind == "mlp" else 0 for kind in config.layer_types])


def nemotron_rules(config) -> dict[str, Parts]:
    names = {
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "up_proj": "ffn_up",
        "down_proj": "ffn_down", "gate": "ffn_gate_inp", "shared_experts.up_proj": "ffn_up_shexp",
        "shared_experts.down_proj": "ffn_down_shexp", "fc1_latent_proj": "ffn_latent_down",
        "fc2_latent_proj": "ffn_latent_up",
    }  # fmt: skip
    rules = {rf"mixer\.{name}\.weight".replace("experts.", r"experts\."): Parts((f"{to}.weight",)) for name, to in names.items()}
    return mamba2("mixer", config.n_groups) | rules | {
        r"mixer\.experts\.up_proj": Parts(("ffn_up_exps.weight",)),
        r"mixer\.experts\.down_proj": Parts(("ffn_down_exps.weight",)),
        r"mixer\.gate\.e_score_correction_bias": Parts(("exp_probs_b.bias",)),
    }


def write_short_conv_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if experts := getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


SHORT_CONV = {r"conv\.conv\.weight": Parts(("shortconv.conv.weight",), **SQUEEZED)}
LFM2_MOE = SHORT_CONV | {
    r"feed_forward\.expert_bias": Parts(("exp_probs_b.bias",)),
    r"feed_forward\.experts\.gate_up_proj": Parts(parts.GATE_AND_UP, **parts.halves(1)),
    r"feed_forward\.experts\.down_proj": parts.DOWN,
}

LFM2 = family(
    ARCH.LFM2, "Lfm2", write_keys=write_short_conv_keys, write_heads=write_kv_heads,
    rules=lambda config: SHORT_CONV,
)  # fmt: skip
LFM2_MOE = family(
    ARCH.LFM2MOE, "Lfm2Moe", write_keys=write_short_conv_keys, write_heads=write_kv_heads,
    rules=lambda config, rules=LFM2_MOE: rules,
)  # fmt: skip


def write_lfm3_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


def write_lfm3_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


LFM3_RULES = SHORT_CONV | {
    r"post_operator_norm\.weight": Parts(("post_attention_norm.weight",)),
    r"post_ffn_norm\.weight": Parts(("post_ffw_norm.weight",)),
    r"self_attn\.g_proj\.weight": Parts(("attn_gate.weight",)),
    r"self_attn\.q_norm\.weight": Parts(("attn_q_norm.weight",)),
    r"self_attn\.k_norm\.weight": Parts(("attn_k_norm.weight",)),
    r"self_attn\.o_proj\.weight": Parts(("attn_output.weight",)),
}
LFM3 = family(
    ARCH.LFM2, "Lfm3", own_name="lfm3", write_keys=write_lfm3_keys, write_heads=write_lfm3_heads,
    rules=lambda config: LFM3_RULES,
)  # fmt: skip
GRANITE_HYBRID = family(
    ARCH.GRANITE_HYBRID, "GraniteMoeHybrid", rotates_neighbours=True, write_keys=write_granite_hybrid_keys,
    write_heads=write_kv_heads, rules=granite_hybrid_rules,
)  # fmt: skip
FALCON_H1 = family(
    ARCH.FALCON_H1, "FalconH1", write_keys=write_prefixed_mamba2_keys,
    rules=lambda config: mamba2("mamba", config.mamba_n_groups),
)  # fmt: skip


def scaled(name: str, factor: np.ndarray | float) -> Parts:
    """A matrix that is stored multiplied by a factor, or its rows by one each."""
    factor = np.float32(factor)
    return Parts((name,), lambda values: [values * factor], lambda parts: parts[0] / factor)


def falcon_factor_rules(config) -> dict[str, Parts]:
    """The rules of Falcon H1 with factors, which files hold in the weights."""
    inner, group = config.mamba_n_heads * config.mamba_d_head, config.mamba_n_groups * config.mamba_d_state
    rows = np.repeat(config.ssm_multipliers, [inner, inner, group, group, config.mamba_n_heads])[:, None]
    attention = config.attention_in_multiplier
    return mamba2("mamba", config.mamba_n_groups) | {
        r"self_attn\.q_proj\.weight": scaled("attn_q.weight", attention),
        r"self_attn\.k_proj\.weight": scaled("attn_k.weight", attention * config.key_multiplier),
        r"self_attn\.v_proj\.weight": scaled("attn_v.weight", attention),
        r"self_attn\.o_proj\.weight": scaled("attn_output.weight", config.attention_out_multiplier),
        r"mamba\.in_proj\.weight": scaled("ssm_in.weight", rows * config.ssm_in_multiplier),
        r"mamba\.out_proj\.weight": scaled("ssm_out.weight", config.ssm_out_multiplier),
        r"feed_forward\.gate_proj\.weight": scaled("ffn_gate.weight", config.mlp_multipliers[0]),
        r"feed_forward\.down_proj\.weight": scaled("ffn_down.weight", config.mlp_multipliers[1]),
    }


def write_falcon_factor_keys(writer: gguf.GGUFWriter, config) -> None:
    write_prefixed_mamba2_keys(writer, config)
    # The converter multiplies the matrices instead, which one matrix for both uses does not allow.
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_logit_scale(config.lm_head_multiplier)


FALCON_H1_FACTORS = family(
    ARCH.FALCON_H1, "FalconH1", write_keys=write_falcon_factor_keys, rules=falcon_factor_rules,
)  # fmt: skip


def nemotron(architecture: ARCH) -> Family:
    def write_heads(writer: gguf.GGUFWriter, config) -> None:
        write_kv_heads(writer, config)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)

    # The norms have no mean, but the key of their epsilon is that of layer norms, as its name in the config.
    return family(
        architecture, "NemotronH", layer_norms=True, write_keys=write_nemotron_keys, write_heads=write_heads,
        writes_lengths=True, rules=nemotron_rules)  # fmt: skip


def small(**changes) -> dict:
    usual = dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True)  # fmt: skip
    return sizes(**(usual | changes))


def without(values: dict, *names: str) -> dict:
    return {name: value for name, value in values.items() if name not in names}


LFM2_SIZES = small(
    layer_types=["conv", "full_attention", "conv", "conv"], norm_eps=1e-3, rope_parameters=rope(theta=1000000.0))  # fmt: skip
PREFIXED_MAMBA2 = dict(mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=8, mamba_expand=2)
GRANITE_HYBRID_SIZES = small(
    **GRANITE_SCALES, **PREFIXED_MAMBA2, layer_types=["mamba", "mamba", "attention", "mamba"], intermediate_size=40,
    shared_intermediate_size=40, num_local_experts=0, num_experts_per_tok=0, rope_parameters=rope(),
    position_embedding_type="nope")  # fmt: skip
NEMOTRON_SIZES = without(small(
    layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"], head_dim=16,
    mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=8, layer_norm_epsilon=1e-3,
    tie_word_embeddings=False), "num_hidden_layers", "rms_norm_eps")  # fmt: skip

NEMOTRON_MOE_SIZES = NEMOTRON_SIZES | dict(
    layers_block_type=["linear_attention", "moe", "full_attention", "moe"], n_routed_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, n_shared_experts=1, n_group=1, topk_group=1,
    routed_scaling_factor=1.5, norm_topk_prob=True)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    "lfm2": Checkpoint(LFM2, LFM2_SIZES | dict(block_auto_adjust_ff_dim=False)),
    "lfm2moe": Checkpoint(LFM2_MOE, LFM2_SIZES | dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, num_dense_layers=1)),
    # Two layers of attention, one of them with a window; only part of the pairs rotates in the other.
    "lfm3": Checkpoint(LFM3, without(small(
        layer_types=["conv", "full_attention", "conv", "sliding_attention"], norm_eps=1e-3, head_dim=24, sliding_window=20,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters={
            "sliding_attention": rope(theta=5000.0),
            "full_attention": rope("proportional", 1000000.0, partial_rotary_factor=0.5)}), "rms_norm_eps")),
    "granitehybrid": Checkpoint(GRANITE_HYBRID, GRANITE_HYBRID_SIZES),
    "granitehybrid-moe": Checkpoint(GRANITE_HYBRID, GRANITE_HYBRID_SIZES | dict(
        num_local_experts=6, num_experts_per_tok=2, intermediate_size=16)),
    "falcon-h1": Checkpoint(FALCON_H1, small(
        **PREFIXED_MAMBA2, mamba_d_ssm=64, num_hidden_layers=2, mamba_rms_norm=True, mamba_norm_before_gate=False,
        head_dim=16, rope_parameters=rope())),
    "falcon-h1-no-norm": Checkpoint(FALCON_H1, small(
        **PREFIXED_MAMBA2, mamba_d_ssm=64, num_hidden_layers=2, mamba_rms_norm=False, head_dim=16,
        rope_parameters=rope())),
    "falcon-h1-factors": Checkpoint(FALCON_H1_FACTORS, small(
        **PREFIXED_MAMBA2, mamba_d_ssm=64, num_hidden_layers=2, mamba_rms_norm=False, head_dim=16,
        rope_parameters=rope(), embedding_multiplier=3.0, lm_head_multiplier=0.5, attention_in_multiplier=0.8,
        attention_out_multiplier=1.3, key_multiplier=0.7, mlp_multipliers=[0.6, 1.4], ssm_in_multiplier=1.2,
        ssm_multipliers=[0.9, 1.1, 0.7, 1.3, 0.8], ssm_out_multiplier=1.25)),
    "nemotron_h": Checkpoint(nemotron(ARCH.NEMOTRON_H), NEMOTRON_SIZES),
    "nemotron_h_moe": Checkpoint(nemotron(ARCH.NEMOTRON_H_MOE), NEMOTRON_MOE_SIZES),
    # The routed experts work on shorter rows.
    "nemotron_h_moe-latent": Checkpoint(nemotron(ARCH.NEMOTRON_H_MOE), NEMOTRON_MOE_SIZES | dict(moe_latent_size=20)),
}  # fmt: skip
