#!/usr/bin/env python3
"""Writes tests/fixtures/quant/*.bin: blocks of every format and the float32 values that they encode.

The expected values come from the `gguf` Python package (`pip install gguf`), which is independent of this repository.

A file holds, little-endian: u32 number of blocks, the blocks' bytes, the float32 values block after block.
Run from the repository root:  python tests/generate/quant_fixtures.py
"""

import struct
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

OUT = Path("tests/fixtures/quant")

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
}
# The format whose scale is a power of two, stored as its first byte.
POWER_OF_TWO = "MXFP4"

# Zeros of both signs, the smallest and largest subnormals, the smallest and largest normals, one, infinity.
EDGE_SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0xFBFF, 0x7BFF, 0x3C00, 0x7C00]


def with_scales(block: np.ndarray, offsets: list[int], bits: list[int]) -> np.ndarray:
    block = block.copy()
    for offset, value in zip(offsets, bits, strict=True):
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


def blocks_of(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    if name == POWER_OF_TWO:
        return power_of_two_blocks(size, rng)
    return quantised_blocks(name, size, rng) if name in SCALES else plain_values(name, rng)


def plain_values(name: str, rng: np.random.Generator) -> np.ndarray:
    """Values of formats without blocks: edge-case bit patterns, then random bits."""
    kind, exponent = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}[name]
    width = np.dtype(kind).itemsize * 8
    edges = [0, 1, exponent - 1, exponent, (1 << (width - 1)), (1 << (width - 1)) | 1, (1 << (width - 1)) | exponent]
    random_bits = rng.integers(0, 1 << width, 121, np.uint64)
    return np.concatenate([np.array(edges, np.uint64), random_bits]).astype(kind).view(np.uint8).reshape(-1, width // 8)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(["F32", "F16", "BF16", *SCALES, POWER_OF_TWO]):
        rng = np.random.default_rng(index)
        kind = GGMLQuantizationType[name]
        blocks = blocks_of(name, GGML_QUANT_SIZES[kind][1], rng)
        with np.errstate(all="ignore"):
            values = dequantize(blocks, kind).astype("<f4")
        path = OUT / f"{name.lower()}.bin"
        path.write_bytes(struct.pack("<I", len(blocks)) + blocks.tobytes() + values.tobytes())
        print(f"{path}: {len(blocks)} blocks, {values.size} values")


if __name__ == "__main__":
    main()
