"""What describes a tiny checkpoint: its family, its sizes as transformers names them, and the formats of its weights."""

from dataclasses import dataclass, field
from typing import Callable

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format

import parts
import vocabulary
from weights import AS_IS, Layout


@dataclass(frozen=True)
class Numbers:
    """A tensor of integers, by its name in a file."""

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Family:
    """What all checkpoints of one architecture share."""

    # Whose names the tensors have.
    architecture: gguf.MODEL_ARCH
    model: type
    config: type
    write_vocabulary: Callable[[gguf.GGUFWriter], None]
    norm_layout: Layout = AS_IS
    # The architecture of files, where llama.cpp has none for the family.
    own_name: str = ""
    # Gemma's checkpoints store norm weights minus 1.
    norm_mean: float = 1.0
    # Ends of the names of norms that `norm_layout` and `norm_mean` do not apply to.
    plain_norms: tuple[str, ...] = ()
    rotates_neighbours: bool = False
    # Layer norms instead of root-mean-square norms.
    layer_norms: bool = False
    # What names of tensors start with in transformers, but not for the converter.
    prefix: str = ""
    # Writes the keys that only this architecture has.
    write_keys: Callable[[gguf.GGUFWriter, object], None] = lambda writer, config: None
    # Writes the number and sizes of key and value heads, for families whose heads differ in size.
    write_heads: Callable[[gguf.GGUFWriter, object], None] | None = None
    # Writes tensors that transformers has none of.
    write_tensors: Callable[[gguf.GGUFWriter, object], None] = lambda writer, config: None
    # Draws a tensor of integers by its name and shape in transformers; `None` for other tensors.
    draw_numbers: Callable[..., Numbers | None] = lambda key, shape, config, rng: None
    # Ends of the names of tensors that transformers computes from the configuration.
    computed: tuple[str, ...] = ()
    # Whether `write_keys` writes the length of the feed-forward of each layer.
    writes_lengths: bool = False
    # Starts of the names of numbered matrices that a file has in one tensor.
    stacks: tuple[str, ...] = ()
    # Whether a file has queries, keys and values in one tensor, which are three in transformers.
    fuses_qkv: bool = False
    # How tensors are stored that the converter does not only rename.
    rules: Callable[[object], dict[str, parts.Parts]] = lambda config: parts.EXPERTS

    @property
    def name(self) -> str:
        return self.own_name or gguf.MODEL_ARCH_NAMES[self.architecture]


@dataclass(frozen=True)
class Checkpoint:
    """One file: a family, its sizes and options as transformers names them, and how its weights are stored."""

    family: Family
    config: dict
    # The format of a weight matrix by the last section of its GGUF name ("attn_q"); "*" for all others.
    formats: dict[str, Format] = field(default_factory=lambda: {"*": Format.F32})
    # Keys in addition to those that follow from the config.
    extra_keys: dict[str, float] = field(default_factory=dict)
    head_gain: float = 2.0
    # Selects other random weights, where with the first ones a row has two almost equal experts and rounding decides.
    draw: int = 0
    # Less than the usual lengths where in a longer prompt some row has two almost equal experts, whatever the weights.
    longest_prompt: int = 300


def sizes(**changes) -> dict:
    """Small sizes with grouped queries. Sizes that could be confused with each other differ."""
    usual = dict(
        vocab_size=vocabulary.SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        # Large, so a wrong epsilon is detected.
        rms_norm_eps=1e-3,
        tie_word_embeddings=False,
    )
    return usual | changes


def rope(kind: str = "default", theta: float = 10000.0, **options) -> dict:
    """transformers' `rope_parameters`."""
    return {"rope_type": kind, "rope_theta": theta} | options


def head_dim(config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
