"""Weights of the tiny checkpoints: random values, block formats, and the conversion between Hugging Face and GGUF layouts.

Tensors have the layout of llama.cpp's converter. Expected values are computed with the weights *of the file*, so every tensor is
converted to the file's layout, quantised, dequantised and converted back for transformers.
"""

import re
from dataclasses import dataclass
from typing import Callable

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format

# Byte offsets of the float16 scale, and of the float16 minimum where there is one, in each block that the `gguf` package cannot
# round to.
K_SCALES = {
    Format.Q2_K: (80, 82),
    Format.Q3_K: (108, None),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208, None),
    Format.IQ4_NL: (0, None),
    Format.IQ4_XS: (0, None),
    Format.IQ2_XXS: (0, None),
    Format.IQ2_XS: (0, None),
    Format.IQ2_S: (0, None),
    Format.IQ3_XXS: (0, None),
    Format.IQ3_S: (0, None),
    Format.IQ1_S: (0, None),
    Format.TQ1_0: (52, None),
    Format.TQ2_0: (64, None),
}


def random_tensor(name: str, shape: tuple[int, ...], gain: dict[str, float], rng: np.random.Generator) -> np.ndarray:
    """Values that keep activations near 1 and logits far apart, so an error anywhere changes the output."""
    noise = rng.standard_normal(shape)
    if re.search(r"(norm(_\d)?|norms\.\d+|\.ln_\w+)\.weight$", name):
        return (gain["norm_mean"] + 0.2 * noise).astype(np.float32)
    if name.endswith(("router.scale", "per_expert_scale", "layer_scalar", "correct_output_scale", ".D")):
        return (1.0 + 0.2 * noise).astype(np.float32)
    if name.endswith("A_log"):
        # States that decay over a few to a hundred tokens.
        return (-2.0 + noise).astype(np.float32)
    if name.endswith((".bias", "_proj_bias", "dt_bias", "sinks", "expert_bias")):
        return (0.5 * noise).astype(np.float32)
    return (tensor_gain(name, gain) / np.sqrt(shape[-1] if shape else 1) * noise).astype(np.float32)


def tensor_gain(name: str, gain: dict[str, float]) -> float:
    """The factor on 1/sqrt(fan-in). Queries, keys, routers and the output head get more than 1, so their choices are clear."""
    if "q_proj" in name or "k_proj" in name:
        return gain["query_key"]
    if name.endswith((".mlp.gate.weight", "router.weight", "router.gate.weight", ".mixer.gate.weight")):
        return 2.0
    if re.search("input_mix_weight|block_inject_weight|ngram_embedding", name):
        # Their outputs are divided by the number of streams, or are short.
        return 4.0
    if name.endswith("modality_router.weight"):
        # Its input is scaled to length 1 / sqrt(fan-in).
        return 64.0
    if name.endswith("router.proj.weight"):
        # Its input is scaled to length 1, not to mean square 1.
        return 16.0
    if re.search("embed_tokens|lm_head|embed_in|embed_out|word_embeddings|embeddings", name):
        return gain["head"]
    return 1.0


def encode(values: np.ndarray, format: Format, rng: np.random.Generator) -> np.ndarray:
    """The bytes of a tensor in `format`: rounded from `values`, or random K-quant blocks with the same deviation."""
    if format in K_SCALES:
        return random_k_blocks(values.shape, float(values.std()), format, rng)
    if format == Format.NVFP4:
        return float_4_blocks(values)
    return gguf.quants.quantize(values, format)


def float_4_blocks(values: np.ndarray) -> np.ndarray:
    """Blocks of NVFP4, which the `gguf` package decodes but does not round to: the largest value of 16 becomes 6 times its scale."""
    decoder = gguf.quants.NVFP4
    groups = values.reshape(-1, 4, 16)
    scales = decoder.fp32_to_ue4m3(np.abs(groups).max(axis=-1) / 6)
    steps = np.maximum(decoder.ue4m3_to_fp32(scales), 1e-9)[..., None, None] * np.array(decoder.kvalues, np.float32)
    codes = np.abs(groups[..., None] - steps).argmin(axis=-1).astype(np.uint8)
    packed = (codes[..., :8] | codes[..., 8:] << 4).reshape(-1, 32)
    return np.concatenate([scales, packed], axis=1).reshape(*values.shape[:-1], -1)


def random_k_blocks(shape: tuple[int, ...], deviation: float, format: Format, rng: np.random.Generator) -> np.ndarray:
    """Blocks of random bits, except for the scales, which give mean 0 and the requested deviation.

    The `gguf` package cannot round to these formats. Random blocks also have bit patterns that rounding never gives.
    """
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[format]
    assert shape[-1] % block_values == 0, f"{shape} does not divide into blocks of {block_values}"
    blocks = rng.integers(0, 256, size=(*shape[:-1], shape[-1] // block_values, block_bytes), dtype=np.uint8)
    scale_at, minimum_at = K_SCALES[format]

    def decoded(scale: float, minimum: float) -> np.ndarray:
        set_half(blocks, scale_at, scale)
        if minimum_at is not None:
            set_half(blocks, minimum_at, minimum)
        return gguf.quants.dequantize(blocks.reshape(*shape[:-1], -1), format)

    # A decoded value is scale * a - minimum * b, with a and b given by the random bits.
    minimum = 0.0
    if minimum_at is not None:
        minimum = float(decoded(1.0, 0.0).mean() / -decoded(0.0, 1.0).mean())
    unit = decoded(1.0, minimum).std()
    decoded(deviation / unit, minimum * deviation / unit)
    return blocks.reshape(*shape[:-1], -1)


def set_half(blocks: np.ndarray, offset: int, value: float) -> None:
    """Writes `value` as float16 at byte `offset` of every block."""
    blocks[..., offset : offset + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


@dataclass(frozen=True)
class Layout:
    """How the converter changes a tensor's values for the file, and the inverse."""

    into_file: Callable[[np.ndarray], np.ndarray]
    out_of_file: Callable[[np.ndarray], np.ndarray]


AS_IS = Layout(lambda values: values, lambda values: values)
# Gemma multiplies by 1 + weight; the file stores the sum.
ONE_ADDED = Layout(lambda values: values + np.float32(1), lambda values: values - np.float32(1))


def interleaved_rotation(heads: int) -> Layout:
    """Rows of Q and K of the `llama` architecture: files pair neighbouring rows, transformers pairs the halves of a head."""

    def swap(values: np.ndarray, first: int, second: int) -> np.ndarray:
        shape = values.shape
        return values.reshape(heads, first, second, *shape[1:]).swapaxes(1, 2).reshape(shape)

    def half(values: np.ndarray) -> int:
        return values.shape[0] // heads // 2

    return Layout(lambda values: swap(values, 2, half(values)), lambda values: swap(values, half(values), 2))
