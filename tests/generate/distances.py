"""Tiny checkpoints of the families whose attention scores fall with the distance between two tokens."""

from dataclasses import replace
from functools import partial

import gguf
import torch
import transformers
from gguf import MODEL_ARCH as ARCH

import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from fused_projections import ungrouped
from parts import Parts


def write_bloom_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(config.n_head)
    writer.add_feed_forward_length(4 * config.hidden_size)


def bloom_rules(config) -> dict[str, Parts]:
    heads = config.n_head
    fused = partial(ungrouped, queries=heads, groups=heads, head=config.hidden_size // heads)
    return {rf"self_attention\.query_key_value\.{kind}": fused(f"attn_qkv.{kind}") for kind in ("weight", "bias")}


def write_mpt_heads(writer: gguf.GGUFWriter, config) -> None:
    # The converter writes no number of key and value heads: there are as many as heads.
    writer.add_feed_forward_length(4 * config.d_model)
    writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)


class LlamaForCausalLM(transformers.LlamaForCausalLM):
    """Scores that fall with distance, by the slopes of ALiBi, instead of rotation."""

    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb.forward = self.unrotated

    def unrotated(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ones = torch.ones(*position_ids.shape, self.config.hidden_size // self.config.num_attention_heads)
        return ones, torch.zeros_like(ones)

    def forward(self, input_ids: torch.Tensor, **options):
        positions = torch.arange(input_ids.shape[1], dtype=torch.float32)
        heads = self.config.num_attention_heads
        # The number of heads is a power of two.
        slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)])
        fall = slopes[:, None, None] * (positions[None, None, :] - positions[None, :, None])
        mask = torch.where(positions[None, :] <= positions[:, None], fall, -torch.inf)[None]
        return super().forward(input_ids=input_ids, attention_mask=mask, **options)


BAICHUAN = Family(
    ARCH.BAICHUAN, transformers.LlamaForCausalLM, transformers.LlamaConfig, vocabulary.write_sentencepiece,
    rotates_neighbours=True,
)  # fmt: skip
# The converter reorders its rows as if they rotated.
BAICHUAN_DEEP = replace(BAICHUAN, model=LlamaForCausalLM)
BLOOM = Family(
    ARCH.BLOOM, transformers.BloomForCausalLM, transformers.BloomConfig, vocabulary.write_byte_level, layer_norms=True,
    prefix="transformer.", write_heads=write_bloom_heads, writes_lengths=True, rules=bloom_rules,
)  # fmt: skip
MPT = Family(
    ARCH.MPT, transformers.MptForCausalLM, transformers.MptConfig, vocabulary.write_byte_level, layer_norms=True,
    write_heads=write_mpt_heads, writes_lengths=True,
)  # fmt: skip
USUAL = dict(
    vocab_size=vocabulary.SIZE, layer_norm_epsilon=1e-3, max_position_embeddings=512, tie_word_embeddings=True,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    "bloom": Checkpoint(BLOOM, USUAL | dict(hidden_size=32, n_layer=2, n_head=4)),
    # The number of heads is no power of two.
    "mpt": Checkpoint(MPT, USUAL | dict(d_model=48, n_layers=2, n_heads=6, max_seq_len=512)),
    # A limit that a third of the queries, keys and values exceeds.
    "mpt-limited": Checkpoint(
        MPT, USUAL | dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=512, attn_config=dict(clip_qkv=1.0)),
        extra_keys={"attention.clamp_kqv": 1.0}),
    "baichuan": Checkpoint(BAICHUAN, sizes(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_key_value_heads=4)),
    # As many layers as the model whose scores fall with distance.
    "baichuan-deep": Checkpoint(BAICHUAN_DEEP, sizes(
        hidden_size=16, intermediate_size=16, num_hidden_layers=40, num_attention_heads=2, num_key_value_heads=2),
        # Rounding adds up over the layers, so the head keeps logits near each other.
        head_gain=0.6),
}
