"""Tiny checkpoints of the families with a learnt embedding of each position."""

import gguf
import transformers
from gguf import MODEL_ARCH as ARCH

import parts
import vocabulary
from checkpoint import Checkpoint, Family

SIZES = dict(
    vocab_size=vocabulary.SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=48, layer_norm_epsilon=1e-3,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip


def write_lengths(writer: gguf.GGUFWriter, config) -> None:
    writer.add_feed_forward_length(config.n_inner)


def write_gpt2_heads(writer: gguf.GGUFWriter, config) -> None:
    # The converter writes no number of key and value heads: there are as many as heads.
    pass


def write_starcoder_heads(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count_kv(1)


def transposed_projections(config) -> dict[str, parts.Parts]:
    """GPT-2's projections have a column for each output."""
    names = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    return {
        rf"{name}\.weight".replace(".c_", r"\.c_"): parts.Parts((f"{stored}.weight",), **parts.TRANSPOSED)
        for name, stored in names.items()
    }


GPT2 = Family(
    ARCH.GPT2, transformers.GPT2LMHeadModel, transformers.GPT2Config, vocabulary.write_byte_level, layer_norms=True,
    write_keys=write_lengths, write_heads=write_gpt2_heads, writes_lengths=True, rules=transposed_projections,
)  # fmt: skip
STARCODER = Family(
    ARCH.STARCODER, transformers.GPTBigCodeForCausalLM, transformers.GPTBigCodeConfig, vocabulary.write_byte_level,
    layer_norms=True, write_keys=write_lengths, write_heads=write_starcoder_heads, writes_lengths=True,
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    "gpt2": Checkpoint(GPT2, SIZES, longest_prompt=90),
    "starcoder": Checkpoint(STARCODER, SIZES | dict(multi_query=True), longest_prompt=90),
}
