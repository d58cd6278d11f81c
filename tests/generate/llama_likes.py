"""Tiny checkpoints of the families whose layers are those of Llama with a few options changed."""

import math
from dataclasses import replace

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import text_models
import vocabulary
from checkpoint import Checkpoint, Family, head_dim, rope, sizes
from parts import Parts
from weights import ONE_ADDED


def family(architecture: ARCH, name: str, **options) -> Family:
    """A family with transformers' classes NAMEForCausalLM and NAMEConfig."""
    model, config = getattr(transformers, f"{name}ForCausalLM"), getattr(transformers, f"{name}Config")
    return Family(architecture, model, config, vocabulary.write_byte_level, **options)


def text_family(architecture: ARCH, name: str, write_keys=lambda writer, config: None) -> Family:
    """The text of a family that also sees images. Without images, its three kinds of positions are equal."""

    def write_all(writer: gguf.GGUFWriter, config) -> None:
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
        write_keys(writer, config)

    model, config = text_models.causal(name), getattr(transformers, f"{name}TextConfig")
    return Family(architecture, model, config, vocabulary.write_byte_level, write_keys=write_all)


def small(**changes) -> dict:
    usual = dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, rope_parameters=rope(), tie_word_embeddings=True
    )
    return sizes(**(usual | changes))


def small_experts(**changes) -> dict:
    return small(num_experts_per_tok=3, moe_intermediate_size=24) | changes


def write_rotary_dim(writer: gguf.GGUFWriter, config) -> None:
    writer.add_rope_dimension_count(int(head_dim(config) * config.rope_parameters["partial_rotary_factor"]))


def in_halves(heads: int, rotated: int) -> dict:
    """Rows of heads whose first ones are pairs of neighbours in transformers, and pairs in two halves in a file."""
    pairs = np.r_[0:rotated:2, 1:rotated:2]

    def order(rows: int) -> np.ndarray:
        length = rows // heads
        return np.concatenate([head * length + np.r_[pairs, rotated:length] for head in range(heads)])

    return dict(
        into_file=lambda values: [values[order(len(values))]],
        out_of_file=lambda parts: parts[0][np.argsort(order(len(parts[0])))],
    )


def glm4v_rules(config) -> dict[str, Parts]:
    rotated = int(head_dim(config) * config.rope_parameters["partial_rotary_factor"])
    heads = dict(q=config.num_attention_heads, k=config.num_key_value_heads)
    return {
        rf"self_attn\.{kind}_proj\.{end}": Parts((f"attn_{kind}.{end}",), **in_halves(count, rotated))
        for kind, count in heads.items() for end in ("weight", "bias")
    }  # fmt: skip


def write_granite_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    if experts := getattr(config, "num_local_experts", None):
        write_experts(writer, experts, config.num_experts_per_tok)
    if shared := getattr(config, "shared_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)


def write_experts(writer: gguf.GGUFWriter, count: int, used: int) -> None:
    writer.add_expert_count(count)
    writer.add_expert_used_count(used)


def write_phi3_keys(writer: gguf.GGUFWriter, config) -> None:
    write_rotary_dim(writer, config)
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if config.rope_parameters["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        stretch = math.log(config.max_position_embeddings / original) / math.log(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + stretch))


def write_mistral3_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
    writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def write_logit_scale(writer: gguf.GGUFWriter, config) -> None:
    writer.add_logit_scale(config.logit_scale)


def write_cohere_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_feed_forward_length(config.prefix_dense_intermediate_size)
    write_logit_scale(writer, config)
    write_window_pattern(writer, config)
    write_experts(writer, config.num_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_experts_of_numbers(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.num_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def write_qwen_experts(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.num_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def write_hunyuan_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.num_experts, config.moe_topk)
    writer.add_expert_shared_feed_forward_length(config.intermediate_size)


def write_ernie_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.moe_num_experts, config.moe_k)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    writer.add_leading_dense_block_count(config.moe_layer_start_index)


def write_minimax_keys(writer: gguf.GGUFWriter, config) -> None:
    write_rotary_dim(writer, config)
    write_experts(writer, config.num_local_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_exaone_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.num_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)


def write_dots_keys(writer: gguf.GGUFWriter, config) -> None:
    write_experts(writer, config.n_routed_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)


def write_hunyuan3_keys(writer: gguf.GGUFWriter, config) -> None:
    write_qwen_experts(writer, config)
    writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.num_shared_experts)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.router_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_window_pattern(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def write_mellum_keys(writer: gguf.GGUFWriter, config) -> None:
    write_qwen_experts(writer, config)
    write_window_pattern(writer, config)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


def write_granite_swa_keys(writer: gguf.GGUFWriter, config) -> None:
    write_granite_keys(writer, config)
    write_window_pattern(writer, config)
    writer.add_rope_pattern([theta != 0 for theta in config.layer_rope_theta])


def write_minicpm_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


# The parameters of xIELU, which files have as keys: alpha_p and alpha_n as they were learnt, beta, epsilon.
XIELU = dict(alpha_p=0.3, alpha_n=-0.4, beta=0.5, eps=-1e-6)


def write_xielu_keys(writer: gguf.GGUFWriter, config) -> None:
    for name, value in XIELU.items():
        getattr(writer, f"add_xielu_{name}")([value] * config.num_hidden_layers)


def xielu_rules(config) -> dict[str, parts.Parts]:
    return {
        rf"mlp\.act_fn\.{name}": parts.Parts((), lambda values: [], lambda _, value=value, name=name: np.array(
            [value] if name.startswith("alpha") else value, dtype=np.float32))
        for name, value in XIELU.items()
    }  # fmt: skip


GRANITE_SCALES = dict(
    embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=2.0,
)  # fmt: skip
PHI3 = family(ARCH.PHI3, "Phi3", write_keys=write_phi3_keys)
# Eight values of a head of which six rotate, so three pairs.
PHI3_ROPE = dict(
    partial_rotary_factor=0.75, long_factor=[1.2, 3.0, 9.0], short_factor=[1.0, 1.1, 1.6],
)  # fmt: skip
COHERE = family(ARCH.COMMAND_R, "Cohere", layer_norms=True, write_keys=write_logit_scale)
STABLELM = family(
    ARCH.STABLELM, "StableLm", layer_norms=True, write_keys=write_rotary_dim, stacks=("model.layers.",),
    rules=lambda config: {rf"self_attn\.{kind}_layernorm\.norms\.weight": parts.Parts((f"attn_{kind}_norm.weight",))
                          for kind in "qk"})  # fmt: skip
STABLELM_ROPE = rope(partial_rotary_factor=0.5)
EXAONE4 = family(ARCH.EXAONE4, "Exaone4")
LAYER_NORM = dict(layer_norm_eps=1e-3)


def phi3(original: int) -> dict:
    """Sizes with a context that was extended from `original` tokens."""
    parameters = rope("longrope", original_max_position_embeddings=original, **PHI3_ROPE)
    return small(
        max_position_embeddings=2048, original_max_position_embeddings=original, rope_parameters=parameters,
        pad_token_id=0)  # fmt: skip


GRANITE_SWA_SIZES = small(
    **GRANITE_SCALES, num_hidden_layers=4, head_dim=16, sliding_window=20,
    layer_types=["sliding_attention"] * 3 + ["full_attention"], layer_rope_theta=[10000.0, 10000.0, 10000.0, 0])  # fmt: skip

GLM4V = replace(text_family(ARCH.GLM4, "Glm4v", write_rotary_dim), rules=glm4v_rules)

CHECKPOINTS: dict[str, Checkpoint] = {
    # transformers has no class of their own for these three; their layers are those of the class that is named.
    "exaone": Checkpoint(family(ARCH.EXAONE, "Llama"), small(
        rope_parameters=rope("llama3", 1000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    "internlm2": Checkpoint(family(ARCH.INTERNLM2, "Llama", rotates_neighbours=True), small(tie_word_embeddings=False)),
    "minicpm": Checkpoint(
        family(ARCH.MINICPM, "Granite", rotates_neighbours=True, write_keys=write_minicpm_keys),
        small(**(GRANITE_SCALES | dict(attention_multiplier=8**-0.5)))),
    "apertus": Checkpoint(
        family(ARCH.APERTUS, "Apertus", write_keys=write_xielu_keys, rules=xielu_rules),
        small(tie_word_embeddings=False, pad_token_id=0, rope_parameters=rope(
            "llama3", 1000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64))),
    "granite_swa": Checkpoint(
        family(ARCH.GRANITE_SWA, "GraniteSWA", rotates_neighbours=True, write_keys=write_granite_swa_keys,
               rules=lambda config: parts.SINKS), GRANITE_SWA_SIZES),
    "granite_swa-moe": Checkpoint(
        family(ARCH.GRANITE_SWA, "GraniteMoeSWA", rotates_neighbours=True, write_keys=write_granite_swa_keys,
               rules=lambda config: parts.SINKS | parts.GRANITE_MOE_FUSED),
        GRANITE_SWA_SIZES | dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=24,
                                 shared_intermediate_size=40)),
    "mellum": Checkpoint(family(ARCH.MELLUM, "Mellum", write_keys=write_mellum_keys), small_experts(
        num_hidden_layers=4, head_dim=16, num_experts=6, sliding_window=20, max_position_embeddings=4096,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], rope_parameters={
            "sliding_attention": rope(theta=20000.0),
            "full_attention": rope("yarn", 500000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                   original_max_position_embeddings=512)}), longest_prompt=90),
    "hy_v3": Checkpoint(
        family(ARCH.HY_V3, "HYV3", write_keys=write_hunyuan3_keys, rules=lambda config: parts.HUNYUAN3),
        small_experts(head_dim=16, num_experts=6, num_shared_experts=1, router_scaling_factor=1.5)),
    "granite": Checkpoint(
        family(ARCH.GRANITE, "Granite", rotates_neighbours=True, write_keys=write_granite_keys),
        small(**GRANITE_SCALES)),
    "granitemoe": Checkpoint(
        family(ARCH.GRANITE_MOE, "GraniteMoeShared", rotates_neighbours=True, write_keys=write_granite_keys,
               rules=lambda config: parts.GRANITE_MOE),
        small(**GRANITE_SCALES, num_local_experts=6, num_experts_per_tok=2, intermediate_size=24,
              shared_intermediate_size=40, tie_word_embeddings=False)),
    "phi3": Checkpoint(PHI3, phi3(512)),
    # Every prompt is longer than the original context.
    "phi3-long": Checkpoint(PHI3, phi3(4)),
    "phi3-window": Checkpoint(PHI3, small(sliding_window=20, pad_token_id=0, original_max_position_embeddings=512,
                                          rope_parameters=rope(partial_rotary_factor=1.0))),
    "mistral3": Checkpoint(
        family(ARCH.MISTRAL3, "Ministral3", rotates_neighbours=True, write_keys=write_mistral3_keys),
        small(head_dim=16, rope_parameters=rope(
            "yarn", 1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=32, llama_4_scaling_beta=0.3))),
    "olmo2": Checkpoint(family(ARCH.OLMO2, "Olmo2"), small(
        rope_parameters=rope(theta=500000.0), tie_word_embeddings=False)),
    "olmo3": Checkpoint(family(ARCH.OLMO2, "Olmo3"), small(
        num_hidden_layers=4, sliding_window=20, max_position_embeddings=4096, rope_parameters={
            "sliding_attention": rope(),
            "full_attention": rope("yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                   original_max_position_embeddings=512)})),
    "olmoe": Checkpoint(
        family(ARCH.OLMOE, "Olmoe", write_keys=write_experts_of_numbers),
        small(num_experts=8, num_experts_per_tok=3, intermediate_size=24, norm_topk_prob=False)),
    "smollm3": Checkpoint(family(ARCH.SMOLLM3, "SmolLM3", rotates_neighbours=True), small(
        num_hidden_layers=4, pad_token_id=0)),
    "cohere2": Checkpoint(
        family(ARCH.COHERE2, "Cohere2", layer_norms=True, write_keys=write_logit_scale),
        small(num_hidden_layers=4, sliding_window=20, logit_scale=0.75, **LAYER_NORM)),
    "cohere2moe": Checkpoint(
        family(ARCH.COHERE2MOE, "Cohere2Moe", layer_norms=True, write_keys=write_cohere_moe_keys, writes_lengths=True),
        small(num_hidden_layers=4, sliding_window=20, logit_scale=0.75, num_experts=6, num_experts_per_tok=2,
              intermediate_size=24, num_shared_experts=1, head_dim=16, prefix_dense_intermediate_size=48,
              layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
              mlp_layer_types=["dense"] + ["sparse"] * 3, norm_topk_prob=True, expert_selection_fn="sigmoid",
              rms_norm_eps=None, **LAYER_NORM)),
    "command-r": Checkpoint(COHERE, small(logit_scale=0.75, **LAYER_NORM)),
    # Each head has a norm of its own, as in the largest model.
    "command-r-heads": Checkpoint(COHERE, small(logit_scale=0.75, use_qk_norm=True, **LAYER_NORM)),
    "glm4": Checkpoint(family(ARCH.GLM4, "Glm4", write_keys=write_rotary_dim), small(
        head_dim=16, attention_bias=True, pad_token_id=0, rope_parameters=rope(partial_rotary_factor=0.5))),
    # The text of models that also see images.
    "glm4v": Checkpoint(GLM4V, small(
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0,
        rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1]))),
    "exaone4": Checkpoint(EXAONE4, small(num_hidden_layers=4, sliding_window=20, sliding_window_pattern=4)),
    "exaone4-small": Checkpoint(EXAONE4, small(
        sliding_window=None, layer_types=["full_attention"] * 2,
        rope_parameters=rope("llama3", 1000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    "seed_oss": Checkpoint(family(ARCH.SEED_OSS, "SeedOss"), small(head_dim=16, attention_bias=True)),
    "nemotron": Checkpoint(
        family(ARCH.NEMOTRON, "Nemotron", layer_norms=True, write_keys=write_rotary_dim, norm_layout=ONE_ADDED,
               norm_mean=0.0),
        small(norm_eps=1e-3, rope_parameters=rope(partial_rotary_factor=0.5))),
    "starcoder2": Checkpoint(family(ARCH.STARCODER2, "Starcoder2", layer_norms=True), small(
        norm_epsilon=1e-3)),
    "phi2": Checkpoint(family(ARCH.PHI2, "Phi", layer_norms=True, write_keys=write_rotary_dim), small(
        num_key_value_heads=4, tie_word_embeddings=False, rope_parameters=rope(partial_rotary_factor=0.5), **LAYER_NORM)),
    "stablelm": Checkpoint(STABLELM, small(rope_parameters=STABLELM_ROPE, use_qkv_bias=True, **LAYER_NORM)),
    "stablelm-parallel": Checkpoint(STABLELM, small(
        rope_parameters=STABLELM_ROPE, use_parallel_residual=True, qk_layernorm=True, **LAYER_NORM)),
    "ernie4_5": Checkpoint(family(ARCH.ERNIE4_5, "Ernie4_5"), small(head_dim=16)),
    "ernie4_5-moe": Checkpoint(
        family(ARCH.ERNIE4_5_MOE, "Ernie4_5_Moe", write_keys=write_ernie_moe_keys,
               rules=lambda config: parts.ERNIE_MOE),
        small(moe_num_experts=8, moe_k=3, moe_intermediate_size=24, moe_num_shared_experts=2)),
    "hunyuan-dense": Checkpoint(family(ARCH.HUNYUAN_DENSE, "HunYuanDenseV1"), small(
        head_dim=16)),
    "hunyuan-moe": Checkpoint(
        family(ARCH.HUNYUAN_MOE, "HunYuanMoEV1", write_keys=write_hunyuan_moe_keys,
               rules=lambda config: parts.HUNYUAN_MOE),
        small(head_dim=16, num_experts=6, moe_topk=2, intermediate_size=24)),
    "minimax-m2": Checkpoint(
        family(ARCH.MINIMAXM2, "MiniMaxM2", write_keys=write_minimax_keys, rules=lambda config: parts.MINIMAX),
        small(head_dim=16, num_local_experts=8, num_experts_per_tok=3, intermediate_size=24,
              rope_parameters=rope(partial_rotary_factor=0.5))),
    "arcee": Checkpoint(family(ARCH.ARCEE, "Arcee", rotates_neighbours=True), small()),
    "dots1": Checkpoint(family(ARCH.DOTS1, "Dots1", write_keys=write_dots_keys), small_experts(
        n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, head_dim=16,
        routed_scaling_factor=1.5, norm_topk_prob=True)),
    "gemma": Checkpoint(
        family(ARCH.GEMMA, "Gemma", norm_layout=ONE_ADDED, norm_mean=0.0),
        small(head_dim=16, num_key_value_heads=1, hidden_act="gelu_pytorch_tanh")),
    "olmo": Checkpoint(family(ARCH.OLMO, "Olmo", rotates_neighbours=True, layer_norms=True), small(rms_norm_eps=1e-5)),
    "chatglm": Checkpoint(family(ARCH.CHATGLM, "Glm", write_keys=write_rotary_dim), small(
        head_dim=8, attention_bias=True, pad_token_id=0, rope_parameters=rope(partial_rotary_factor=0.5))),
    # As a directory, it has the names of ChatGLM 3, and another base of frequencies.
    "chatglm3": Checkpoint(family(ARCH.CHATGLM, "Glm", write_keys=write_rotary_dim), small(
        head_dim=8, attention_bias=True, pad_token_id=0, tie_word_embeddings=False,
        rope_parameters=rope(theta=50000.0, partial_rotary_factor=0.5))),
    "jais2": Checkpoint(family(ARCH.JAIS2, "Jais2", layer_norms=True), small(head_dim=8, **LAYER_NORM)),
    "exaone-moe": Checkpoint(family(ARCH.EXAONE_MOE, "ExaoneMoe", write_keys=write_exaone_moe_keys), small_experts(
        num_hidden_layers=4, head_dim=8, sliding_window=20, sliding_window_pattern=4, num_experts=5,
        num_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.5,
        norm_topk_prob=True)),
    "qwen2vl": Checkpoint(text_family(ARCH.QWEN2VL, "Qwen2_5_VL"), small(rope_parameters=rope(mrope_section=[2, 1, 1]))),
    "paddleocr": Checkpoint(text_family(ARCH.PADDLEOCR, "PaddleOCR"), small(
        head_dim=16, pad_token_id=0, rope_parameters=rope(mrope_section=[4, 2, 2]))),
    "qwen3vl": Checkpoint(text_family(ARCH.QWEN3VL, "Qwen3VL"), small(
        head_dim=16, rope_parameters=rope(mrope_section=[4, 2, 2]))),
    "qwen3vlmoe": Checkpoint(text_family(ARCH.QWEN3VLMOE, "Qwen3VLMoe", write_qwen_experts), small_experts(
        head_dim=16, num_experts=6, norm_topk_prob=True, rope_parameters=rope(mrope_section=[4, 2, 2])), draw=1),
}  # fmt: skip
