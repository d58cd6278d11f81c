"""Tiny checkpoints of the families with embeddings of n-grams of tokens."""

import gguf
import numpy as np
import transformers
from gguf import MODEL_ARCH as ARCH
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

import hybrids
import parts
import vocabulary
from checkpoint import Checkpoint, Family
from parts import Parts

# What the embedding of n-grams computes with.
HASH = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")


def one_added(name: str) -> Parts:
    return Parts((name,), lambda values: [values + np.float32(1)], lambda parts: parts[0] - np.float32(1))


def of_streams(name: str, stored: str) -> dict[str, Parts]:
    """The tensors with which streams are read and written."""
    tensors = {"input_mix_weight_down": "down", "input_mix_weight_up": "up", "block_inject_weight": "inject", "hc_norm": "norm"}
    return {rf"{name}\.{tensor}\.weight": Parts((f"{stored}_{kind}.weight",)) for tensor, kind in tensors.items()}


def qwen4_rules(config) -> dict[str, Parts]:
    queries = config.indexer_n_heads * config.indexer_head_dim
    indexer = Parts(("indexer.q_proj.weight", "indexer.k_proj.weight"), lambda values: np.split(values, [queries]), np.concatenate)
    return (
        parts.EXPERTS
        | hybrids.tiled_heads(config)
        | of_streams("attn_hyper_connection", "hc_attn")
        | of_streams("mlp_hyper_connection", "hc_ffn")
        | of_streams(r"model\.hyper_connection_mixer", "output_hc")
        | {
            r"self_attn\.indexer\.index_qk_proj\.weight": indexer,
            r"self_attn\.indexer\.q_layernorm\.weight": Parts(("indexer.q_norm.weight",)),
            r"self_attn\.indexer\.k_layernorm\.weight": Parts(("indexer.k_norm.weight",)),
            r"ple\.ple_embedding\.ngram_embedding\.weight": Parts(("per_layer_token_embd.weight",)),
            r"ple\.key_proj\.weight": Parts(("ple_key.weight",)),
            r"ple\.value_proj\.weight": Parts(("ple_value.weight",)),
            r"ple\.conv1d\.weight": Parts(("ple_conv1d.weight",), lambda values: [values[:, 0]], lambda parts: parts[0][:, None]),
        }
        | {rf"ple\.norm_{kind}\.weight": one_added(f"ple_norm_{kind}.weight") for kind in ("key", "query", "conv")}
    )


def write_qwen4_keys(writer: gguf.GGUFWriter, config) -> None:
    hybrids.write_delta_keys(writer, config)
    writer.add_hyper_connection_count(config.hc_count)
    writer.add_hyper_connection_low_rank(config.hc_lowrank)
    writer.add_indexer_head_count(config.indexer_n_heads)
    writer.add_indexer_key_length(config.indexer_head_dim)
    writer.add_indexer_top_k(config.indexer_budget)
    ratio = config.indexer_compress_ratio
    writer.add_attention_compress_ratios([0 if kind == "linear_attention" else ratio for kind in config.layer_types])
    (layer,) = config.ple_layer_ids
    embedding = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer - 1)
    multipliers, sizes, offsets = (getattr(embedding, name).tolist() for name in HASH)
    writer.add_ple_layers([layer - 1])
    writer.add_ple_ngram_size(config.ngram_size)
    writer.add_ple_heads_per_ngram(config.heads_per_ngram)
    writer.add_ple_conv_kernel(config.ple_conv_kernel_size)
    writer.add_ple_eos_token_id(config.eos_token_id)
    writer.add_embedding_length_per_layer_input(config.ple_embed_dim // embedding.ngram_heads)
    writer.add_ple_layer_multipliers(multipliers)
    writer.add_ple_head_offsets(offsets)
    writer.add_ple_head_vocab_sizes(sizes)


QWEN4 = Family(
    ARCH.QWEN4EXP, transformers.Qwen4ExpForCausalLM, transformers.Qwen4ExpTextConfig, vocabulary.write_byte_level,
    norm_layout=hybrids.ONE_ADDED, norm_mean=0.0, plain_norms=("linear_attn.norm.weight",), write_keys=write_qwen4_keys,
    rules=qwen4_rules, computed=HASH,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # A budget so small that it applies, and enough heads of the indexer that no pool has a negative product with all of them: its
    # score would be exactly 0, as that of others. Prompts have the token at which n-grams end.
    "qwen4exp": Checkpoint(QWEN4, {
        key: value for key, value in hybrids.delta(
            **hybrids.EXPERTS, num_attention_heads=4, num_key_value_heads=2, rope_parameters=hybrids.SECTIONS,
            layer_types=["linear_attention", "indexed_attention"] * 2, output_gate_type="sigmoid", norm_topk_prob=True,
            hc_count=4, hc_lowrank=12, indexer_n_heads=16, indexer_kv_heads=1, indexer_head_dim=20, indexer_budget=16,
            indexer_compress_ratio=4, ple_layer_ids=[3], ple_embed_dim=32, ngram_size=3, heads_per_ngram=2,
            ngram_vocab_size_base=97, split_ngram_parts=4, eos_token_id=112, pad_token_id=0,
        ).items() if key != "intermediate_size"}, draw=2),
}  # fmt: skip
