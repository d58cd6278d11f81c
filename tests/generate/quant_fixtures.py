#!/usr/bin/env python3
"""Writes tests/fixtures/quant/*.bin: blocks of every format and the float32 values that they encode.

The expected values come from the `gguf` Python package (`pip install gguf`), which is independent of this repository.

A file holds, little-endian: u32 number of blocks, the blocks' bytes, the float32 values block after block.
Run from the repository root:  python tests/generate/quant_fixtures.py [NAME ...]
"""

import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

OUT = Path("tests/fixtures/quant")

# Where a float16 scale is not in one place: its nibbles are the top nibbles of the last four 16-bit words, lowest first.
SCATTERED = -1

# Byte offsets of the float16 scales in a block of each format.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "IQ2_XXS": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ2_S": [0],
    "IQ2_XS": [0],
    "IQ1_S": [0],
    "IQ1_M": [SCATTERED],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "Q1_0": [0],
    "Q2_0": [0],
    "Q4_Z": [0],
    "Q8_Z": [0],
}
# The format whose scale is a power of two, stored as its first byte.
POWER_OF_TWO = "MXFP4"
# The format with scales of 8 bits, stored as its first four bytes.
FLOAT_8 = "NVFP4"

# The format with a float32 scale before codes in floating point.
FLOAT_8_VALUES = "F8_E4M3"
NORMAL_FLOAT = "NF4"

# Every format. The position of a format is the seed of its blocks.
FORMATS = """F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 IQ2_XXS IQ3_XXS IQ3_S IQ2_S
IQ2_XS IQ1_S IQ1_M TQ1_0 TQ2_0 Q1_0 Q2_0 NVFP4 F8_E4M3 Q4_Z Q8_Z NF4""".split()

# Zeros of both signs, the smallest and largest subnormals, the smallest and largest normals, one, infinity.
EDGE_SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0xFBFF, 0x7BFF, 0x3C00, 0x7C00]


def with_scales(block: np.ndarray, offsets: list[int], bits: list[int]) -> np.ndarray:
    block = block.copy()
    for offset, value in zip(offsets, bits, strict=True):
        if offset == SCATTERED:
            nibbles = np.array([value >> shift & 15 for shift in (0, 4, 8, 12)], np.uint8)
            block[-7::2] = block[-7::2] & 15 | nibbles << 4
            continue
        block[offset : offset + 2] = np.frombuffer(struct.pack("<H", value), np.uint8)
    return block


def quantised_blocks(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """All-zero, all-ones and random bits with edge-case scales, then random bits with scales in the range of real files."""
    offsets = SCALES[name]
    random_bits = lambda: rng.integers(0, 256, size, np.uint8)
    blocks = [np.zeros(size, np.uint8), with_scales(np.full(size, 255, np.uint8), offsets, [0x3C00] * len(offsets))]
    for index, scale in enumerate(EDGE_SCALES):
        other = EDGE_SCALES[-2 - index % (len(EDGE_SCALES) - 1)]
        blocks.append(with_scales(random_bits(), offsets, [scale, other][: len(offsets)]))
    for _ in range(5):
        scales = rng.normal(0, 0.05, len(offsets)).astype(np.float16).view(np.uint16)
        blocks.append(with_scales(random_bits(), offsets, scales.tolist()))
    return np.stack(blocks)


def power_of_two_blocks(size: int, rng: np.random.Generator) -> np.ndarray:
    """Every exponent, with random codes."""
    blocks = rng.integers(0, 256, (256, size), np.uint8)
    blocks[:, 0] = np.arange(256)
    return blocks


def float_8_blocks(size: int, rng: np.random.Generator) -> np.ndarray:
    """Every scale, with random codes."""
    blocks = rng.integers(0, 256, (64, size), np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    return blocks


def float_8_value_blocks(size: int, rng: np.random.Generator) -> np.ndarray:
    """Every code, with random scales, and with scales that are zero, subnormal, large, infinite or no number."""
    edges = np.array([0, -0.0, 1e-45, 1e-39, 1e36, 3e38, np.inf, np.nan], np.float32)
    scales = np.concatenate([rng.normal(0, 0.05, 8).astype(np.float32), edges])
    codes = np.tile(rng.permutation(256).astype(np.uint8).reshape(8, size - 4), (2, 1))
    return np.concatenate([scales.view(np.uint8).reshape(-1, 4), codes], axis=1)


def normal_float_blocks(size: int, rng: np.random.Generator) -> np.ndarray:
    """Random codes, with random scales, and with scales that are zero, subnormal, large, infinite or no number."""
    edges = np.array([0, -0.0, 1e-45, 1e-39, 1e36, 3e38, np.inf, np.nan], np.float32)
    scales = np.concatenate([rng.normal(0, 0.05, 24).astype(np.float32), edges])
    codes = rng.integers(0, 256, (len(scales), size - 4), np.uint8)
    return np.concatenate([scales.view(np.uint8).reshape(-1, 4), codes], axis=1)


def blocks_of(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    if name == POWER_OF_TWO:
        return power_of_two_blocks(size, rng)
    if name == FLOAT_8:
        return float_8_blocks(size, rng)
    if name == FLOAT_8_VALUES:
        return float_8_value_blocks(size, rng)
    if name == NORMAL_FLOAT:
        return normal_float_blocks(size, rng)
    return quantised_blocks(name, size, rng) if name in SCALES else plain_values(name, rng)


def sign_bits(blocks: np.ndarray) -> np.ndarray:
    """Q1_0, which versions of the package lack: a float16 scale, then a bit for each value; 1 is the scale, 0 its negative."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
    return scales * (2 * bits - 1)


def two_bits(blocks: np.ndarray) -> np.ndarray:
    """Q2_0, which versions of the package lack: a float16 scale, then two bits for each value; the code 1 is zero."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(blocks), -1)
    return scales * (codes.astype(np.float32) - 1)


def float_8_values(blocks: np.ndarray) -> np.ndarray:
    """F8_E4M3, which GGUF lacks: a float32 scale, then numbers as PyTorch decodes them."""
    import torch

    scales = torch.from_numpy(blocks[:, :4].copy().view(np.float32))
    return (torch.from_numpy(blocks[:, 4:].copy()).view(torch.float8_e4m3fn).float() * scales).numpy()


def nibbles_with_zero(blocks: np.ndarray) -> np.ndarray:
    """Q4_Z, which GGUF lacks: a float16 scale, a zero point in four bits, then the low nibbles and the high nibbles of codes."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    zeros = (blocks[:, 2:3] & 15).astype(np.float32)
    codes = np.concatenate([blocks[:, 3:] & 15, blocks[:, 3:] >> 4], axis=1)
    return scales * (codes.astype(np.float32) - zeros)


def bytes_with_zero(blocks: np.ndarray) -> np.ndarray:
    """Q8_Z, which GGUF lacks: a float16 scale, a zero point, then codes, each with a sign."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    integers = blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    return scales * (integers[:, 1:] - integers[:, :1])


def normal_floats(blocks: np.ndarray) -> np.ndarray:
    """NF4, which GGUF lacks: a float32 scale, then twice the low nibbles and the high nibbles of codes for 32 values."""
    scales = blocks[:, :4].copy().view(np.float32)
    codes = blocks[:, 4:].reshape(-1, 2, 16)
    codes = np.concatenate([codes & 15, codes >> 4], axis=2).reshape(len(blocks), 64)
    return np.array(NORMAL_FLOATS, np.float32)[codes] * scales


# The numbers of the package `bitsandbytes`.
NORMAL_FLOATS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


# Formats that the package does not decode: bytes of a block, and the values of blocks.
WRITTEN_HERE = {"Q1_0": (18, sign_bits), "Q2_0": (18, two_bits), FLOAT_8_VALUES: (36, float_8_values),
                "Q4_Z": (19, nibbles_with_zero), "Q8_Z": (35, bytes_with_zero),
                NORMAL_FLOAT: (36, normal_floats)}  # fmt: skip


def plain_values(name: str, rng: np.random.Generator) -> np.ndarray:
    """Values of formats without blocks: edge-case bit patterns, then random bits."""
    kind, exponent = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}[name]
    width = np.dtype(kind).itemsize * 8
    edges = [0, 1, exponent - 1, exponent, (1 << (width - 1)), (1 << (width - 1)) | 1, (1 << (width - 1)) | exponent]
    random_bits = rng.integers(0, 1 << width, 121, np.uint64)
    return np.concatenate([np.array(edges, np.uint64), random_bits]).astype(kind).view(np.uint8).reshape(-1, width // 8)


def main(names: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or FORMATS:
        rng = np.random.default_rng(FORMATS.index(name))
        if name in WRITTEN_HERE:
            size, values_of = WRITTEN_HERE[name]
        else:
            kind = GGMLQuantizationType[name]
            size, values_of = GGML_QUANT_SIZES[kind][1], lambda blocks: dequantize(blocks, kind)
        blocks = blocks_of(name, size, rng)
        with np.errstate(all="ignore"):
            values = values_of(blocks).astype("<f4")
        path = OUT / f"{name.lower()}.bin"
        path.write_bytes(struct.pack("<I", len(blocks)) + blocks.tobytes() + values.tobytes())
        print(f"{path}: {len(blocks)} blocks, {values.size} values")


if __name__ == "__main__":
    main(sys.argv[1:])
