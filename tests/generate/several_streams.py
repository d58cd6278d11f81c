"""Tiny checkpoints of the family with several residual streams."""

import gguf
import torch
import transformers
from gguf import MODEL_ARCH as ARCH

import vocabulary
from checkpoint import Checkpoint, Family, rope, sizes
from parts import Parts


def write_gemma3n_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    # Minus infinity for layers without a cutoff.
    parts = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    writer.add_activation_sparsity_scale(torch.distributions.normal.Normal(0, 1).icdf(parts).tolist())
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


GEMMA3N = Family(
    ARCH.GEMMA3N, transformers.Gemma3nForCausalLM, transformers.Gemma3nTextConfig, vocabulary.write_sentencepiece,
    write_keys=write_gemma3n_keys,
    stacks=("model.altup_projections.", "model.altup_unembed_projections."),
    rules=lambda config: {r"altup\.correct_output_scale": Parts(("altup_correct_scale.weight",))},
)  # fmt: skip

CHECKPOINTS: dict[str, Checkpoint] = {
    # The first two layers have a cutoff; the last two read the keys and values of earlier ones.
    "gemma3n": Checkpoint(GEMMA3N, sizes(
        num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, hidden_size=32, head_dim=16,
        intermediate_size=[48, 48, 40, 40, 56, 56], activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.0, 0.0, 0.0],
        sliding_window=24, tie_word_embeddings=True, hidden_size_per_layer_input=8,
        # The second table lacks the last tokens.
        vocab_size_per_layer_input=vocabulary.SIZE - 12, num_kv_shared_layers=2, laurel_rank=12, altup_num_inputs=4,
        final_logit_softcapping=8.0,
        rope_parameters={"sliding_attention": rope(theta=10000.0), "full_attention": rope(theta=1000000.0)})),
}  # fmt: skip
