"""Writes tiny random checkpoints of every model family as GGUF files, and the values that transformers computes with them.

    python tests/generate/families.py [NAME ...]      (needs torch, transformers, gguf, sentencepiece, tokenizers)

Writes `tests/fixtures/families/NAME.gguf` and `NAME.json`. The same package versions write the same bytes.
"""

import hashlib
import re
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Format

import block_attention
import directories
import distances
import fused_projections
import gated_attention
import hybrids
import kimi_k3
import learnt_positions
import limited_projections
import ling
import llama_likes
import ngrams
import oracle
import own_layers
import parts
import pooled_attention
import selective_scans
import several_streams
import state_spaces
import unequal_heads
import vocabulary
from checkpoint import Checkpoint, Family, head_dim, rope, sizes
from weights import AS_IS, ONE_ADDED, Layout, encode, interleaved_rotation, random_tensor

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
PROMPT_LENGTHS = (5, 37, 90, 300)
CONTINUATION = 16


LLAMA = Family(
    gguf.MODEL_ARCH.LLAMA,
    transformers.LlamaForCausalLM,
    transformers.LlamaConfig,
    vocabulary.write_byte_level,
    rotates_neighbours=True,
)
MISTRAL = Family(
    gguf.MODEL_ARCH.LLAMA,
    transformers.MistralForCausalLM,
    transformers.MistralConfig,
    vocabulary.write_sentencepiece,
    rotates_neighbours=True,
)
QWEN2 = Family(
    gguf.MODEL_ARCH.QWEN2, transformers.Qwen2ForCausalLM, transformers.Qwen2Config, vocabulary.write_byte_level
)
QWEN3 = Family(
    gguf.MODEL_ARCH.QWEN3, transformers.Qwen3ForCausalLM, transformers.Qwen3Config, vocabulary.write_byte_level
)
GEMMA2 = Family(
    gguf.MODEL_ARCH.GEMMA2,
    transformers.Gemma2ForCausalLM,
    transformers.Gemma2Config,
    vocabulary.write_sentencepiece,
    norm_layout=ONE_ADDED,
    norm_mean=0.0,
)


def write_gemma3_keys(writer: gguf.GGUFWriter, config) -> None:
    # The converter does not write this key; a loader then derives the scale from sizes that these checkpoints do not have.
    writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)


GEMMA3 = Family(
    gguf.MODEL_ARCH.GEMMA3,
    transformers.Gemma3ForCausalLM,
    transformers.Gemma3TextConfig,
    vocabulary.write_sentencepiece,
    norm_layout=ONE_ADDED,
    norm_mean=0.0,
    write_keys=write_gemma3_keys,
)


def write_mixtral_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.num_local_experts, config.num_experts_per_tok)


def write_qwen_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.num_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if shared := getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)


def write_glm4_moe_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.n_routed_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", 0))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))


def write_expert_counts(writer: gguf.GGUFWriter, count: int, used: int) -> None:
    writer.add_expert_count(count)
    writer.add_expert_used_count(used)


MIXTRAL = Family(
    gguf.MODEL_ARCH.LLAMA,
    transformers.MixtralForCausalLM,
    transformers.MixtralConfig,
    vocabulary.write_sentencepiece,
    rotates_neighbours=True,
    write_keys=write_mixtral_keys,
)
QWEN2_MOE = Family(
    gguf.MODEL_ARCH.QWEN2MOE,
    transformers.Qwen2MoeForCausalLM,
    transformers.Qwen2MoeConfig,
    vocabulary.write_byte_level,
    write_keys=write_qwen_moe_keys,
)
QWEN3_MOE = Family(
    gguf.MODEL_ARCH.QWEN3MOE,
    transformers.Qwen3MoeForCausalLM,
    transformers.Qwen3MoeConfig,
    vocabulary.write_byte_level,
    write_keys=write_qwen_moe_keys,
)
GLM4_MOE = Family(
    gguf.MODEL_ARCH.GLM4_MOE,
    transformers.Glm4MoeForCausalLM,
    transformers.Glm4MoeConfig,
    vocabulary.write_byte_level,
    write_keys=write_glm4_moe_keys,
)


def write_gpt_oss_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.num_local_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def write_deepseek_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.n_routed_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(dense_layers(config))
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if isinstance(config, transformers.Mistral4Config):
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
    elif not isinstance(config, transformers.DeepseekV2Config):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if not isinstance(config, transformers.DeepseekV2Config):
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if not isinstance(config, transformers.DeepseekV2Config) or config.topk_method == "group_limited_greedy":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    write_query_rank(writer, config)
    if mscale := config.rope_parameters.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)


def dense_layers(config) -> int:
    """The layers without experts, which come first."""
    kinds = getattr(config, "mlp_layer_types", None)
    return kinds.count("dense") if kinds else config.first_k_dense_replace


def write_indexer_keys(writer: gguf.GGUFWriter, config) -> None:
    write_deepseek_keys(writer, config)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    if kinds := getattr(config, "indexer_types", None):
        writer.add_indexer_types([kind == "full" for kind in kinds])


def write_query_rank(writer: gguf.GGUFWriter, config) -> None:
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)


def write_latent_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


def write_older_latent_heads(writer: gguf.GGUFWriter, config) -> None:
    """The sizes of heads as if each had keys and values of its own, as older converters wrote them."""
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


def write_llama4_keys(writer: gguf.GGUFWriter, config) -> None:
    write_expert_counts(writer, config.num_local_experts, config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_rope_dimension_count(config.head_dim)
    # The converter does not write these four keys. Loaders default to 8192, 8192, 0.1 and a rule over the key above.
    writer.add_uint32("llama4.attention.chunk_size", config.attention_chunk_size)
    writer.add_attn_temperature_length(config.floor_scale)
    writer.add_attn_temperature_scale(config.attn_scale)
    writer.add_bool("llama4.use_qk_norm", config.use_qk_norm)


def write_gemma4_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.enable_moe_block:
        write_expert_counts(writer, config.num_experts, config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def write_unequal_heads(writer: gguf.GGUFWriter, config) -> None:
    full = config.per_layer_config[config.layer_types.index("full_attention")]
    writer.add_head_count_kv([config.per_layer_config[i].num_key_value_heads for i in range(config.num_hidden_layers)])
    for write in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        write(full.head_dim)
    for write in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        write(config.per_layer_config[config.layer_types.index("sliding_attention")].head_dim)


GPT_OSS = Family(
    gguf.MODEL_ARCH.GPT_OSS,
    transformers.GptOssForCausalLM,
    transformers.GptOssConfig,
    vocabulary.write_byte_level,
    write_keys=write_gpt_oss_keys,
    rules=lambda config: parts.GPT_OSS,
)
DEEPSEEK2 = Family(
    gguf.MODEL_ARCH.DEEPSEEK2,
    transformers.DeepseekV2ForCausalLM,
    transformers.DeepseekV2Config,
    vocabulary.write_byte_level,
    write_keys=write_deepseek_keys,
    write_heads=write_latent_heads,
    rules=lambda config: parts.EXPERTS | parts.latent(config),
)
# Keys and values in one tensor, as older converters wrote them.
DEEPSEEK2_JOINED = replace(DEEPSEEK2, write_heads=write_older_latent_heads, rules=lambda config: parts.EXPERTS)
DEEPSEEK3 = replace(DEEPSEEK2, model=transformers.DeepseekV3ForCausalLM, config=transformers.DeepseekV3Config)
MISTRAL4 = replace(
    DEEPSEEK2, architecture=gguf.MODEL_ARCH.MISTRAL4, model=transformers.Mistral4ForCausalLM,
    config=transformers.Mistral4Config,
)  # fmt: skip
DEEPSEEK32 = replace(
    DEEPSEEK2, architecture=gguf.MODEL_ARCH.DEEPSEEK32, model=transformers.DeepseekV32ForCausalLM,
    config=transformers.DeepseekV32Config, write_keys=write_indexer_keys,
)  # fmt: skip
GLM_DSA = replace(
    DEEPSEEK32, architecture=gguf.MODEL_ARCH.GLM_DSA, model=transformers.GlmMoeDsaForCausalLM,
    config=transformers.GlmMoeDsaConfig,
)  # fmt: skip
GLM4_MOE_LITE = replace(DEEPSEEK2, model=transformers.Glm4MoeLiteForCausalLM, config=transformers.Glm4MoeLiteConfig)
YOUTU = replace(
    DEEPSEEK2, model=transformers.YoutuForCausalLM, config=transformers.YoutuConfig, write_keys=write_query_rank
)
SOLAR_OPEN = replace(GLM4_MOE, model=transformers.SolarOpenForCausalLM, config=transformers.SolarOpenConfig)
LLAMA4 = Family(
    gguf.MODEL_ARCH.LLAMA4,
    transformers.Llama4ForCausalLM,
    transformers.Llama4TextConfig,
    vocabulary.write_byte_level,
    write_keys=write_llama4_keys,
    rules=lambda config: parts.LLAMA4,
)
GEMMA4 = Family(
    gguf.MODEL_ARCH.GEMMA4,
    transformers.Gemma4ForCausalLM,
    transformers.Gemma4TextConfig,
    vocabulary.write_sentencepiece,
    write_keys=write_gemma4_keys,
    write_heads=write_unequal_heads,
    rules=lambda config: parts.GEMMA4,
)


GEMMA2_SIZES = sizes(
    num_hidden_layers=4, head_dim=24, query_pre_attn_scalar=24, sliding_window=24, tie_word_embeddings=True,
    attn_logit_softcapping=5.0, final_logit_softcapping=8.0,
)  # fmt: skip
GEMMA3_SIZES = sizes(
    num_hidden_layers=7, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    query_pre_attn_scalar=16, sliding_window=20, tie_word_embeddings=True,
    rope_parameters={"sliding_attention": rope(theta=10000.0), "full_attention": rope(theta=1000000.0)},
)  # fmt: skip
# K-quant blocks hold 256 values, so every row must be a multiple of that.
WIDE = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, tie_word_embeddings=True)
MIXED_Q4_K = {"*": Format.Q4_K, "attn_v": Format.Q6_K, "ffn_down": Format.Q6_K, "token_embd": Format.Q6_K}

SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, tie_word_embeddings=True)

MIXTRAL_SIZES = sizes(num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope())
QWEN2_MOE_SIZES = sizes(
    num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=48,
    norm_topk_prob=False, rope_parameters=rope(theta=1000000.0),
)  # fmt: skip
QWEN3_MOE_SIZES = sizes(
    num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True, head_dim=24,
    rope_parameters=rope(theta=1000000.0),
)  # fmt: skip
GLM4_MOE_SIZES = sizes(
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
    n_group=4, topk_group=2, routed_scaling_factor=1.5, norm_topk_prob=True, head_dim=32, attention_bias=True,
    use_qk_norm=True, rope_parameters=rope(theta=1000000.0, partial_rotary_factor=0.5),
)  # fmt: skip

GPT_OSS_SIZES = sizes(
    num_local_experts=6, num_experts_per_tok=3, head_dim=32, sliding_window=24, intermediate_size=96,
    max_position_embeddings=4096,
    rope_parameters=rope("yarn", 150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                         original_max_position_embeddings=512),
)  # fmt: skip
# As the published models have it. In transformers the norms of latent attention have this epsilon in any case.
DEEPSEEK2_SIZES = sizes(
    num_key_value_heads=4, rms_norm_eps=1e-6, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
    n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.5, q_lora_rank=None, kv_lora_rank=40,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, topk_method="greedy", rope_parameters=rope(),
)  # fmt: skip
DEEPSEEK3_SIZES = sizes(
    num_key_value_heads=4, rms_norm_eps=1e-6, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
    n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=2.5,
    norm_topk_prob=True, q_lora_rank=24, kv_lora_rank=40, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20,
    max_position_embeddings=4096,
    rope_parameters=rope("yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                         original_max_position_embeddings=512),
)  # fmt: skip
LATENT_SIZES = dict(
    num_key_value_heads=4, rms_norm_eps=1e-6, q_lora_rank=24, kv_lora_rank=40, qk_nope_head_dim=16, qk_rope_head_dim=8,
    v_head_dim=20, rope_parameters=rope(),
)  # fmt: skip
# Enough heads that no position has a negative product with all of them: its score would be exactly 0, as that of others.
INDEXER_SIZES = dict(index_topk=16, index_head_dim=20, index_n_heads=16)
LLAMA4_SIZES = sizes(
    num_hidden_layers=4, intermediate_size=48, intermediate_size_mlp=96, head_dim=24, num_local_experts=6,
    num_experts_per_tok=2, interleave_moe_layer_step=2, attention_chunk_size=32, floor_scale=16, attn_scale=0.2,
    rope_parameters=rope(theta=500000.0),
)  # fmt: skip
GEMMA4_SIZES = sizes(
    num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, head_dim=16, global_head_dim=32,
    num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=24, tie_word_embeddings=True,
    hidden_size_per_layer_input=0, vocab_size_per_layer_input=vocabulary.SIZE, enable_moe_block=True, num_experts=8,
    top_k_experts=3, moe_intermediate_size=32, final_logit_softcapping=8.0,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # Float32 weights: the engine's arithmetic must agree to rounding.
    "llama": Checkpoint(LLAMA, sizes(rope_parameters=rope())),
    "llama-tied": Checkpoint(LLAMA, sizes(tie_word_embeddings=True, rope_parameters=rope(theta=100000.0))),
    "llama-rope-llama3": Checkpoint(LLAMA, sizes(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters=rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    "llama-rope-linear": Checkpoint(LLAMA, sizes(
        num_hidden_layers=2, tie_word_embeddings=True, rope_parameters=rope("linear", factor=4.0))),
    "llama-rope-yarn": Checkpoint(LLAMA, sizes(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        max_position_embeddings=4096,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=1024))),
    "mistral-window": Checkpoint(MISTRAL, sizes(head_dim=16, sliding_window=13, rope_parameters=rope())),
    "qwen2": Checkpoint(QWEN2, sizes(rope_parameters=rope(theta=1000000.0))),
    "qwen2-tied": Checkpoint(QWEN2, sizes(
        rope_parameters=rope(theta=1000000.0), tie_word_embeddings=True)),
    "qwen3": Checkpoint(QWEN3, sizes(
        head_dim=32, rope_parameters=rope(theta=1000000.0), tie_word_embeddings=True)),
    "qwen3-untied": Checkpoint(QWEN3, sizes(
        num_hidden_layers=2, head_dim=24, rope_parameters=rope(theta=1000000.0))),
    "gemma2": Checkpoint(GEMMA2, GEMMA2_SIZES),
    # With the key, the scale does not depend on the rule that loaders use without it.
    "gemma2-scale": Checkpoint(GEMMA2, GEMMA2_SIZES | dict(num_hidden_layers=2, query_pre_attn_scalar=40),
                               extra_keys={"attention.scale": 40**-0.5}),
    "gemma3": Checkpoint(GEMMA3, GEMMA3_SIZES),
    "gemma3-rope-linear": Checkpoint(GEMMA3, GEMMA3_SIZES | dict(rope_parameters={
        "sliding_attention": rope(theta=5000.0), "full_attention": rope("linear", 1000000.0, factor=8.0)}),
        extra_keys={"rope.freq_base_swa": 5000.0}),
    "mixtral": Checkpoint(MIXTRAL, MIXTRAL_SIZES, draw=1),
    "qwen2moe": Checkpoint(QWEN2_MOE, QWEN2_MOE_SIZES),
    "qwen3moe": Checkpoint(QWEN3_MOE, QWEN3_MOE_SIZES),
    "glm4moe": Checkpoint(GLM4_MOE, GLM4_MOE_SIZES),
    "gpt-oss": Checkpoint(GPT_OSS, GPT_OSS_SIZES, draw=1),
    "deepseek2": Checkpoint(DEEPSEEK2, DEEPSEEK2_SIZES),
    "deepseek2-joined": Checkpoint(DEEPSEEK2_JOINED, DEEPSEEK2_SIZES | SMALL | dict(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16)),
    # A group counts as much as its best expert.
    "deepseek2-groups": Checkpoint(DEEPSEEK2, DEEPSEEK2_SIZES | dict(
        n_routed_experts=8, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4, topk_group=2)),
    "deepseek3": Checkpoint(DEEPSEEK3, DEEPSEEK3_SIZES, longest_prompt=90),
    # Every prompt is longer than the original context, so that queries grow.
    "mistral4": Checkpoint(MISTRAL4, DEEPSEEK3_SIZES | SMALL | dict(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        n_group=1, topk_group=1, first_k_dense_replace=0, routed_scaling_factor=1.0,
        rope_parameters=rope("yarn", factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=32, llama_4_scaling_beta=0.3)), draw=3),
    "glm4-moe-lite": Checkpoint(GLM4_MOE_LITE, sizes(**SMALL, **LATENT_SIZES) | dict(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
        mlp_layer_types=["dense", "sparse"], routed_scaling_factor=1.5, norm_topk_prob=True)),
    "deepseek32": Checkpoint(DEEPSEEK32, DEEPSEEK3_SIZES | INDEXER_SIZES | dict(n_group=1, topk_group=1), draw=9),
    # The second layer attends to the positions that the first one has selected.
    "glm-dsa": Checkpoint(GLM_DSA, sizes(**LATENT_SIZES) | INDEXER_SIZES | dict(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
        mlp_layer_types=["dense", "sparse", "sparse"], indexer_types=["full", "shared", "full"],
        routed_scaling_factor=1.5, norm_topk_prob=True), draw=9),
    # The epsilon of the norms of latent vectors is not that of the others.
    "youtu": Checkpoint(YOUTU, sizes(**SMALL, **(LATENT_SIZES | dict(rms_norm_eps=1e-3)))),
    "solar-open": Checkpoint(SOLAR_OPEN, sizes(**SMALL) | dict(
        head_dim=16, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, n_group=1,
        topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True, rope_parameters=rope(partial_rotary_factor=1.0))),
    "llama4": Checkpoint(LLAMA4, LLAMA4_SIZES, draw=1),
    "gemma4": Checkpoint(GEMMA4, GEMMA4_SIZES, draw=1),
    # The last two layers read the keys and values of earlier ones and have wider feed-forwards.
    "gemma4-e": Checkpoint(GEMMA4, GEMMA4_SIZES | dict(
        num_hidden_layers=6, layer_types=GEMMA4_SIZES["layer_types"][:2] * 3, hidden_size=32, intermediate_size=40,
        attention_k_eq_v=False, num_global_key_value_heads=None, hidden_size_per_layer_input=8,
        num_kv_shared_layers=2, use_double_wide_mlp=True, enable_moe_block=False)),
    "gemma4-dense": Checkpoint(GEMMA4, GEMMA4_SIZES | dict(num_hidden_layers=2, layer_types=GEMMA4_SIZES["layer_types"][:2],
                                                           enable_moe_block=False)),
    # Small enough to be stored as directories too.
    "llama-shards": Checkpoint(LLAMA, sizes(**SMALL, rope_parameters=rope())),
    "mixtral-small": Checkpoint(MIXTRAL, MIXTRAL_SIZES | SMALL),
    "qwen3moe-small": Checkpoint(QWEN3_MOE, QWEN3_MOE_SIZES | SMALL | dict(num_experts=4, moe_intermediate_size=16)),
    "gpt-oss-small": Checkpoint(GPT_OSS, GPT_OSS_SIZES | SMALL | dict(num_local_experts=4, head_dim=16)),
    "gemma4-small": Checkpoint(GEMMA4, GEMMA4_SIZES | SMALL | dict(
        layer_types=GEMMA4_SIZES["layer_types"][:2], num_experts=4, moe_intermediate_size=16)),
    # Quantised weights: compared with transformers on the dequantised weights.
    "llama-f16": Checkpoint(LLAMA, sizes(rope_parameters=rope()), {"*": Format.F16}),
    "llama-q8_0": Checkpoint(LLAMA, sizes(rope_parameters=rope()), {"*": Format.Q8_0}),
    "llama-q4_0": Checkpoint(LLAMA, sizes(rope_parameters=rope()), {"*": Format.Q4_0, "output": Format.Q8_0}),
    "llama-q4_k": Checkpoint(LLAMA, sizes(rope_parameters=rope(), **WIDE), MIXED_Q4_K),
    "mistral-q4_1": Checkpoint(MISTRAL, sizes(head_dim=16, sliding_window=13, rope_parameters=rope()),
                               {"*": Format.Q4_1, "token_embd": Format.Q8_0}),
    "qwen2-bf16": Checkpoint(QWEN2, sizes(rope_parameters=rope(theta=1000000.0)), {"*": Format.BF16}),
    "qwen2-k-mixed": Checkpoint(QWEN2, sizes(rope_parameters=rope(theta=1000000.0), **WIDE), {
        "*": Format.Q5_K, "ffn_gate": Format.Q2_K, "ffn_up": Format.Q3_K, "token_embd": Format.Q4_K}),
    "qwen3-q8_0": Checkpoint(QWEN3, sizes(head_dim=32, rope_parameters=rope(), tie_word_embeddings=True),
                             {"*": Format.Q8_0}),
    "llama-iq4_nl": Checkpoint(LLAMA, sizes(rope_parameters=rope()), {"*": Format.IQ4_NL, "output": Format.Q8_0}),
    "llama-iq4_xs": Checkpoint(LLAMA, sizes(rope_parameters=rope(), **WIDE), {
        "*": Format.IQ4_XS, "ffn_down": Format.Q5_K, "token_embd": Format.Q6_K}),
    "llama-iq2": Checkpoint(LLAMA, sizes(rope_parameters=rope(), **WIDE), {
        "*": Format.IQ2_XXS, "ffn_down": Format.IQ2_S, "ffn_up": Format.IQ2_XS, "attn_v": Format.Q4_K,
        "token_embd": Format.Q6_K}),
    "llama-iq1": Checkpoint(LLAMA, sizes(rope_parameters=rope(), **WIDE), {
        "*": Format.IQ1_S, "attn_output": Format.TQ1_0, "ffn_down": Format.TQ2_0, "attn_v": Format.Q4_K,
        "token_embd": Format.Q6_K}),
    "qwen3moe-iq3": Checkpoint(
        QWEN3_MOE,
        QWEN3_MOE_SIZES | WIDE | dict(moe_intermediate_size=256, num_experts=4, head_dim=32, num_attention_heads=8),
        {"*": Format.IQ3_S, "ffn_gate_inp": Format.F32, "ffn_gate_exps": Format.IQ3_XXS, "ffn_up_exps": Format.IQ3_XXS,
         "ffn_down_exps": Format.IQ2_S, "token_embd": Format.Q6_K}),
    "qwen2-nvfp4": Checkpoint(
        QWEN2, sizes(rope_parameters=rope(theta=1000000.0), **(WIDE | dict(tie_word_embeddings=False))), {"*": Format.NVFP4}),
    "gpt-oss-mxfp4": Checkpoint(GPT_OSS, GPT_OSS_SIZES, {
        "*": Format.Q8_0, "ffn_gate_inp": Format.F32, "ffn_gate_exps": Format.MXFP4, "ffn_up_exps": Format.MXFP4,
        "ffn_down_exps": Format.MXFP4}),
    "deepseek3-q4_0": Checkpoint(DEEPSEEK3, DEEPSEEK3_SIZES | dict(
        q_lora_rank=32, kv_lora_rank=96, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=64), {
        "*": Format.Q4_0, "ffn_gate_inp": Format.F32, "attn_k_b": Format.Q8_0, "attn_v_b": Format.Q8_0,
        "output": Format.Q8_0}, longest_prompt=90),
    "gemma2-q5_1": Checkpoint(GEMMA2, GEMMA2_SIZES, {"*": Format.Q5_1, "token_embd": Format.Q8_0}),
    "gemma3-q5_0": Checkpoint(GEMMA3, GEMMA3_SIZES, {"*": Format.Q5_0, "token_embd": Format.Q8_0}),
    "mixtral-q4_0": Checkpoint(MIXTRAL, MIXTRAL_SIZES, {
        "*": Format.Q4_0, "ffn_gate_inp": Format.F32, "output": Format.Q8_0}),
    "qwen3moe-q4_k": Checkpoint(
        QWEN3_MOE,
        QWEN3_MOE_SIZES | WIDE | dict(moe_intermediate_size=256, num_experts=4, head_dim=32, num_attention_heads=8),
        MIXED_Q4_K | {"ffn_gate_inp": Format.F32, "ffn_down_exps": Format.Q6_K}),
} | llama_likes.CHECKPOINTS | fused_projections.CHECKPOINTS | gated_attention.CHECKPOINTS | hybrids.CHECKPOINTS | (
    state_spaces.CHECKPOINTS | learnt_positions.CHECKPOINTS | distances.CHECKPOINTS | selective_scans.CHECKPOINTS
    | own_layers.CHECKPOINTS | unequal_heads.CHECKPOINTS | limited_projections.CHECKPOINTS | several_streams.CHECKPOINTS
    | ling.CHECKPOINTS | pooled_attention.CHECKPOINTS | ngrams.CHECKPOINTS | block_attention.CHECKPOINTS
    | kimi_k3.CHECKPOINTS
)  # fmt: skip


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    hybrids.compute_serially()
    for name in names or CHECKPOINTS:
        generate(name, CHECKPOINTS[name])


def generate(name: str, checkpoint: Checkpoint) -> None:
    """Writes one checkpoint and its expected values."""
    rng = np.random.default_rng(zlib.crc32(name.encode()) + checkpoint.draw)
    config, shapes = layers_of(checkpoint)
    folder = FIXTURES / "families"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, checkpoint.family.name)
    write_metadata(writer, name, checkpoint, config)
    checkpoint.family.write_vocabulary(writer)
    state = write_weights(writer, checkpoint, config, shapes, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = oracle_model(checkpoint, config, state)
    lengths = [length for length in PROMPT_LENGTHS if length <= checkpoint.longest_prompt]
    prompts = [rng.integers(0, vocabulary.SIZE, size=length).tolist() for length in lengths]
    oracle.write_json(path.with_suffix(".json"), {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} {checkpoint.family.model.__name__}, float32",
        "formats": sorted({format.name for format in checkpoint.formats.values()}),
        "prompts": [oracle.prompt_case(model, prompt, CONTINUATION) for prompt in prompts],
    })  # fmt: skip
    if name in directories.NAMES:
        directories.write(FIXTURES / "hugging_face" / name, model)
    print(f"{name:20} {path.stat().st_size / 1024:7.0f} KiB", flush=True)


def write_directory(name: str) -> None:
    """Writes the directory of one checkpoint, with the weights of its file."""
    checkpoint = CHECKPOINTS[name]
    config, shapes = layers_of(checkpoint)
    state = read_weights(FIXTURES / "families" / f"{name}.gguf", checkpoint, config, shapes)
    directories.write(FIXTURES / "hugging_face" / name, oracle_model(checkpoint, config, state))


def layers_of(checkpoint: Checkpoint) -> tuple[object, dict[str, tuple[int, ...]]]:
    """transformers' configuration, and the shapes of the weights."""
    config = checkpoint.family.config(**checkpoint.config, attn_implementation="eager")
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in checkpoint.family.model(config).state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    return config, {key: shape for key, shape in shapes.items() if not is_computed(key, checkpoint.family)}


def is_computed(key: str, family: Family) -> bool:
    return bool(family.computed) and key.endswith(family.computed)


def oracle_model(checkpoint: Checkpoint, config, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The Hugging Face model with the weights of the file."""
    model = checkpoint.family.model(config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    expected_missing = ["lm_head.weight"] if config.tie_word_embeddings else []
    missing = [key for key in missing if not is_computed(key, checkpoint.family)]
    assert missing in ([], expected_missing) and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


def write_metadata(writer: gguf.GGUFWriter, name: str, checkpoint: Checkpoint, config) -> None:
    """Writes the keys that llama.cpp's converter writes for the family."""
    architecture = checkpoint.family.name
    writer.add_type("model")
    writer.add_name(f"Tiny random {name}")
    writer.add_license("mit")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    # In Llama 4's config `intermediate_size` is that of the experts. A config without dense layers has none.
    length = getattr(config, "intermediate_size_mlp", getattr(config, "intermediate_size", None))
    if length and not checkpoint.family.writes_lengths:
        wide = getattr(config, "use_double_wide_mlp", False) and config.num_kv_shared_layers
        narrow = config.num_hidden_layers - (wide or 0)
        writer.add_feed_forward_length([length] * narrow + [2 * length] * wide if wide else length)
    writer.add_head_count(config.num_attention_heads)
    if checkpoint.family.write_heads:
        checkpoint.family.write_heads(writer, config)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    write_epsilon = writer.add_layer_norm_eps if checkpoint.family.layer_norms else writer.add_layer_norm_rms_eps
    write_epsilon(norm_epsilon(config))
    if "head_dim" in checkpoint.config and not checkpoint.family.write_heads:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if checkpoint.family.rotates_neighbours:
        writer.add_rope_dimension_count(head_dim(config))
    if parameters := rope_parameters(config):
        write_rope(writer, parameters)
    if checkpoint.config.get("sliding_window"):
        writer.add_sliding_window(config.sliding_window)
    if cap := getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(cap)
    if cap := getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(cap)
    checkpoint.family.write_keys(writer, config)
    for key, value in checkpoint.extra_keys.items():
        writer.add_float32(f"{architecture}.{key}", value)


def rope_parameters(config) -> dict:
    """transformers' parameters; empty for a model without rotation."""
    return getattr(config, "rope_parameters", None) or {}


def norm_epsilon(config) -> float:
    names = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
    return next(value for name in names if (value := getattr(config, name, None)) is not None)


def write_rope(writer: gguf.GGUFWriter, parameters: dict) -> None:
    """Writes base and scaling of the layers with full attention. `llama3` scaling is a tensor and not keys."""
    if compressed := parameters.get("compress"):
        parameters = compressed | {"rope_theta": parameters["main"]["rope_theta"]}
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    if parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(parameters["factor"])
    if parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])


def write_weights(
    writer, checkpoint: Checkpoint, config, shapes: dict, rng, values_of=None
) -> dict[str, torch.Tensor]:
    """Lays out and stores every weight; returns the state dict of the stored weights for transformers.

    Values are random, unless `values_of` gives those of a name and shape.
    """
    names = gguf.get_tensor_name_map(checkpoint.family.architecture, config.num_hidden_layers)
    gain = {"query_key": 1.5, "head": checkpoint.head_gain}
    state = {}
    for key, members in stacked(shapes, checkpoint.family).items():
        if numbers := checkpoint.family.draw_numbers(key, shapes.get(key), config, rng):
            writer.add_tensor(numbers.name, numbers.values.astype(np.int32))
            state[key] = torch.from_numpy(numbers.values)
            continue
        gain["norm_mean"] = 1.0 if key.endswith(checkpoint.family.plain_norms) else checkpoint.family.norm_mean
        drawn = [values_of(name, shapes[name]) if values_of else random_tensor(name, shapes[name], gain, rng)
                 for name in members]  # fmt: skip
        values = joined(key, drawn)
        layout, rule = layout_of(key, checkpoint.family, config), rule_of(key, checkpoint.family, config, names)
        read = []
        for stored_name, part in zip(rule.names, rule.into_file(values), strict=True):
            format = format_of(stored_name, part.shape, checkpoint.formats)
            factor = add_factor(writer, stored_name, format)
            stored = encode(np.ascontiguousarray(layout.into_file(part) / factor), format, rng)
            writer.add_tensor(stored_name, stored, raw_dtype=format)
            read.append(layout.out_of_file(factor * gguf.quants.dequantize(stored, format).reshape(part.shape)))
        whole = np.ascontiguousarray(rule.out_of_file(read), dtype=np.float32)
        state |= unstacked(key, {name: shapes[name] for name in members}, whole)
    checkpoint.family.write_tensors(writer, config)
    rotary = rope_parameters(config)
    for length in ("long", "short") if "long_factor" in rotary else ():
        factors = np.array(rotary[f"{length}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{length}.weight", factors)
    if rotary.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    if rotary.get("full_attention", {}).get("rope_type") == "proportional":
        writer.add_tensor("rope_freqs.weight", proportional_factors(config))
    return state


def read_weights(path: Path, checkpoint: Checkpoint, config, shapes: dict) -> dict[str, torch.Tensor]:
    """The state dict of the weights of a file."""
    names = gguf.get_tensor_name_map(checkpoint.family.architecture, config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def read(name: str) -> np.ndarray:
        if stored[name].tensor_type == Format.I32:
            return stored[name].data
        values = gguf.quants.dequantize(stored[name].data, stored[name].tensor_type)
        return values.reshape(stored[name].shape[::-1])

    state = {}
    for key, members in stacked(shapes, checkpoint.family).items():
        layout, rule = layout_of(key, checkpoint.family, config), rule_of(key, checkpoint.family, config, names)
        values = rule.out_of_file([layout.out_of_file(read(name)) for name in rule.names])
        state |= unstacked(key, {name: shapes[name] for name in members}, np.array(values, dtype=np.float32))
    return {key: values.reshape(shapes[key]) for key, values in state.items()}


QKV = ".qkv_proj.weight"


def stacked(shapes: dict, family: Family) -> dict[str, list[str]]:
    """The tensors of transformers by the name under which a file has them: their own, or that of several together."""
    groups: dict[str, list[str]] = {}
    for key in shapes:
        name = re.sub(r"\.\d+\.weight$", ".weight", key) if key.startswith(family.stacks or "-") else key
        name = re.sub(r"\.[qkv]_proj\.weight$", QKV, name) if family.fuses_qkv else name
        groups.setdefault(name, []).append(key)
    return groups


def joined(key: str, parts: list[np.ndarray]) -> np.ndarray:
    """Tensors that a file has under one name: projections one after the other, or equal matrices along a new axis."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if key.endswith(QKV) else np.stack(parts)


def unstacked(key: str, shapes: dict[str, tuple[int, ...]], values: np.ndarray) -> dict[str, torch.Tensor]:
    """The tensors of transformers that a file has under one name."""
    if list(shapes) == [key]:
        parts = [values]
    elif key.endswith(QKV):
        parts = np.split(values, np.cumsum([shape[0] for shape in shapes.values()])[:-1])
    else:
        parts = list(values)
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in zip(shapes, parts, strict=True)}


def rule_of(key: str, family: Family, config, names) -> parts.Parts:
    """The names of a weight's tensors in the file, and the conversions."""
    rule = parts.find(family.rules(config), key)
    key = key.removeprefix(family.prefix)
    return rule or parts.Parts((names.get_name(key, try_suffixes=(".weight", ".bias")),))


def layout_of(key: str, family: Family, config) -> Layout:
    if key.endswith("norm.weight") and not key.endswith(family.plain_norms):
        return family.norm_layout
    if family.rotates_neighbours and "q_proj" in key:
        return interleaved_rotation(config.num_attention_heads)
    if family.rotates_neighbours and "k_proj" in key:
        return interleaved_rotation(kv_heads(config, key))
    return AS_IS


def kv_heads(config, key: str) -> int:
    """The heads of keys in the layer of a weight."""
    of_layers = getattr(config, "kv_heads_of_layers", None)
    return of_layers[int(re.search(r"layers\.(\d+)\.", key)[1])] if of_layers else config.num_key_value_heads


def add_factor(writer: gguf.GGUFWriter, stored_name: str, format: Format) -> np.float32:
    """The factor of a tensor's values, which files have for one format in a tensor of its own. That of its input has no effect."""
    if format != Format.NVFP4:
        return np.float32(1)
    factor = np.float32(0.03)
    writer.add_tensor(stored_name.replace(".weight", ".scale"), np.array([factor]))
    writer.add_tensor(stored_name.replace(".weight", ".input_scale"), np.array([0.01], np.float32))
    return factor


def format_of(stored_name: str, shape: tuple[int, ...], formats: dict[str, Format]) -> Format:
    """Vectors always stay in float32."""
    if len(shape) == 1:
        return Format.F32
    return formats.get(stored_name.removesuffix(".weight").rsplit(".", 1)[-1], formats["*"])


def rope_factors(config) -> np.ndarray:
    """[head_dim / 2] divisors of the rotary frequencies, the form of `llama3` scaling in files."""
    parameters = config.rope_parameters
    dimension = head_dim(config)
    frequencies = parameters["rope_theta"] ** -(np.arange(0, dimension, 2, dtype=np.float64) / dimension)
    rotations = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / parameters["factor"] + smooth)).astype(np.float32)


def proportional_factors(config) -> np.ndarray:
    """[head_dim / 2] divisors: pairs after the rotated section get a frequency of almost 0."""
    full = config.layer_types.index("full_attention")
    own = getattr(config, "per_layer_config", None)
    half = (own[full].head_dim if own else head_dim(config)) // 2
    rotated = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * half)
    return np.array([1.0] * rotated + [1e30] * (half - rotated), dtype=np.float32)


if __name__ == "__main__":
    main(sys.argv[1:])
