"""Tiny Hugging Face directories with quantized weights, and the log-probabilities of the model with the values that they stand for.

The codes of compressed-tensors and of bitsandbytes are packed by these packages; those of GPTQ and AWQ by the layout of their checkpoints. Codes in floating
point (FP8) need no packing; other weights of these directories are in bfloat16, as published ones have them.
"""

import json
import shutil
import sys
from pathlib import Path

import bitsandbytes.functional
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import save_file
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import oracle
import pooled_attention
import published
import vocabulary

FOLDER = Path(__file__).parent.parent / "fixtures" / "quantized_directories"
SIZES = dict(vocab_size=vocabulary.SIZE, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=512, tie_word_embeddings=False)  # fmt: skip
LLAMA = (LlamaForCausalLM, LlamaConfig(intermediate_size=128, **SIZES))
EXPERTS = (Qwen3MoeForCausalLM, Qwen3MoeConfig(intermediate_size=128, moe_intermediate_size=64, num_experts=4,
                                               num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], **SIZES))  # fmt: skip


def quantized(weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes [outputs, inputs] around 0 and the scales [outputs, groups] of a matrix."""
    groups = weight.reshape(weight.shape[0], -1, group or weight.shape[1])
    scales = (groups.abs().amax(-1) / (2 ** (bits - 1) - 1)).to(dtype)
    codes = torch.clamp(torch.round(groups / scales.float()[..., None]), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(weight.shape).to(torch.int8), scales


def values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What codes and scales stand for."""
    return (codes.float().reshape(*scales.shape, -1) * scales.float()[..., None]).reshape(codes.shape)


def compressed(codes: torch.Tensor, scales: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    shape = torch.tensor(codes.shape)
    return {"weight_packed": pack_to_int32(codes, bits), "weight_scale": scales, "weight_shape": shape}


def compressed_bytes(codes: torch.Tensor, scales: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    return {"weight": codes, "weight_scale": scales}


def gptq(codes: torch.Tensor, scales: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """Symmetric codes have the zero 2^(bits-1), which is stored less one."""
    count, zero = 32 // bits, 2 ** (bits - 1)
    unsigned = (codes.numpy().astype(np.int64) + zero).T.reshape(-1, count, codes.shape[0])
    shifts = (np.arange(count) * bits)[None, :, None]
    words = (unsigned << shifts).sum(1).astype(np.uint32).view(np.int32)
    zeros = np.uint32(sum((zero - 1) << (bits * index) for index in range(count)))
    qzeros = np.full((scales.shape[1], codes.shape[0] // count), zeros, dtype=np.uint32).view(np.int32)
    group = codes.shape[1] // scales.shape[1]
    g_idx = torch.arange(codes.shape[1], dtype=torch.int32) // group
    return {"qweight": torch.from_numpy(np.ascontiguousarray(words)), "scales": scales.T.contiguous(), "qzeros": torch.from_numpy(qzeros), "g_idx": g_idx}


def quantized_with_zeros(weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes [outputs, inputs] from 0, the scales and the zero points [outputs, groups] of a matrix.

    The first groups have their smallest and their largest zero point: all of their values have one sign.
    """
    groups = weight.reshape(weight.shape[0], -1, group or weight.shape[1]).clone()
    groups[0] = groups[0].abs()
    groups[1] = -groups[1].abs()
    last = 2**bits - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / last).to(dtype)
    zeros = torch.clamp(torch.round(-low / scales.float()), 0, last)
    codes = torch.clamp(torch.round(groups / scales.float()[..., None]) + zeros[..., None], 0, last)
    return codes.reshape(weight.shape).to(torch.int32), scales, zeros.to(torch.int32)


def values_with_zeros(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """What codes, scales and zero points stand for."""
    integers = codes.reshape(*scales.shape, -1) - zeros[..., None]
    return (integers.float() * scales.float()[..., None]).reshape(codes.shape)


def words(codes: np.ndarray, bits: int, order: list[int]) -> np.ndarray:
    """Unsigned codes [n, 32 / bits, m] as numbers [n, m], of which the lowest bits hold the code `order[0]`."""
    shifts = (np.arange(len(order)) * bits)[None, :, None]
    return (codes.astype(np.int64)[:, order] << shifts).sum(1).astype(np.uint32)


def words_of_rows(codes: np.ndarray, bits: int, order: list[int]) -> np.ndarray:
    """Unsigned codes [n, m] as numbers [n, m * bits / 32]."""
    return words(codes.reshape(-1, 32 // bits, 1), bits, order).reshape(codes.shape[0], -1)


def as_tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers).view(np.int32))


def compressed_with_zeros(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    signed = lambda unsigned: (unsigned - 2 ** (bits - 1)).to(torch.int8)
    return compressed(signed(codes), scales, bits) | {"weight_zero_point": pack_to_int32(signed(zeros), bits, packed_dim=0).contiguous()}


def compressed_bytes_with_zeros(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    signed = lambda unsigned: (unsigned - 2 ** (bits - 1)).to(torch.int8)
    return {"weight": signed(codes), "weight_scale": scales, "weight_zero_point": signed(zeros)}


def gptq_v2(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    order = list(range(32 // bits))
    rows = codes.numpy().T.reshape(-1, len(order), codes.shape[0])
    g_idx = torch.arange(codes.shape[1], dtype=torch.int32) // (codes.shape[1] // scales.shape[1])
    return {"qweight": as_tensor(words(rows, bits, order)), "scales": scales.T.contiguous(),
            "qzeros": as_tensor(words_of_rows(zeros.numpy().T, bits, order)), "g_idx": g_idx}  # fmt: skip


def gptq_v1(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """As gptqmodel converts it: 1 is subtracted in each code of a number at once, so a zero of 0 borrows from the next."""
    tensors = gptq_v2(codes, scales, zeros, bits)
    ones = sum(1 << (bits * index) for index in range(32 // bits))
    return tensors | {"qzeros": as_tensor(tensors["qzeros"].numpy().view(np.uint32) - np.uint32(ones))}


def awq(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """The first code of each eight is in the lowest bits, then come every second and the others."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"qweight": as_tensor(words_of_rows(codes.numpy().T, bits, order)), "scales": scales.T.contiguous(),
            "qzeros": as_tensor(words_of_rows(zeros.numpy().T, bits, order))}  # fmt: skip


def compressed_zeros_config(bits: int, group: int) -> dict:
    config = compressed_config(bits, group)
    config["config_groups"]["group_0"]["weights"]["symmetric"] = False
    return config


def gptq_v1_config(bits: int, group: int) -> dict:
    return gptq_config(bits, group) | dict(sym=False, desc_act=True)


def gptq_v2_config(bits: int, group: int) -> dict:
    return gptq_config(bits, group) | dict(sym=False, checkpoint_format="gptq_v2")


def gptq_order_config(bits: int, group: int) -> dict:
    return gptq_config(bits, group) | dict(desc_act=True)


def compressed_order_config(bits: int, group: int) -> dict:
    config = compressed_zeros_config(bits, group)
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    return config


def order_of(key: str, inputs: int) -> torch.Tensor:
    """The inputs in the order of their groups. Matrices with the same inputs have the same order, except for values."""
    name = key.replace("k_proj", "q_proj").replace("up_proj", "gate_proj")
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(sum(name.encode())))


def awq_config(bits: int, group: int) -> dict:
    return dict(quant_method="awq", bits=bits, group_size=group, zero_point=True, version="gemm", modules_to_not_convert=None)


def compressed_config(bits: int, group: int) -> dict:
    weights = dict(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=group, actorder=None)
    groups = dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None))
    return dict(quant_method="compressed-tensors", format="pack-quantized", config_groups=groups, ignore=["lm_head"])


def bytes_config(bits: int, group: int) -> dict:
    """A scale for each output, and activations that are rounded at run time."""
    config = compressed_config(bits, group) | dict(format="int-quantized")
    activations = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    config["config_groups"]["group_0"] |= dict(input_activations=activations)
    config["config_groups"]["group_0"]["weights"] |= dict(strategy="channel", group_size=None)
    return config


def bytes_zeros_config(bits: int, group: int) -> dict:
    config = bytes_config(bits, group)
    config["config_groups"]["group_0"]["weights"]["symmetric"] = False
    return config


def gptq_config(bits: int, group: int) -> dict:
    return dict(quant_method="gptq", bits=bits, group_size=group, desc_act=False, sym=True, checkpoint_format="gptq")


def float8(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of a matrix and a scale for each block, where blocks at the edges may be smaller."""
    edges = [-size % length for size, length in zip(weight.shape, block)]
    padded = torch.nn.functional.pad(weight, (0, edges[1], 0, edges[0]))
    blocks = padded.reshape(padded.shape[0] // block[0], block[0], -1, block[1])
    scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    codes = (blocks / scales[:, None, :, None]).reshape(padded.shape)[: weight.shape[0], : weight.shape[1]]
    return codes.to(torch.float8_e4m3fn), scales


def float8_values(codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """What codes and scales stand for."""
    spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return codes.float() * spread[: codes.shape[0], : codes.shape[1]]


def float8_config(strategy: str) -> dict:
    weights = dict(num_bits=8, type="float", symmetric=True, strategy=strategy, dynamic=False, block_structure=None)
    groups = dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None))
    return dict(quant_method="compressed-tensors", format="float-quantized", config_groups=groups, ignore=["lm_head"])


def of_blocks(shape: torch.Size) -> tuple[int, int]:
    return 128, 128


def of_outputs(shape: torch.Size) -> tuple[int, int]:
    return 1, shape[1]


def of_groups(shape: torch.Size) -> tuple[int, int]:
    return 1, 32


def of_matrix(shape: torch.Size) -> tuple[int, int]:
    return shape


BLOCK_CONFIG = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128],
                    modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"])  # fmt: skip
# Neither size of the matrices is a multiple of a block.
EDGES = (Qwen3MoeForCausalLM, Qwen3MoeConfig(**(EXPERTS[1].to_dict() | dict(hidden_size=160, moe_intermediate_size=32, tie_word_embeddings=True))))
# Scales are exponents of powers of two.
MXFP8_CONFIG = dict(quant_method="mxfp8", activation_scheme="dynamic", weight_block_size=[1, 32], ignored_layers=["lm_head"])
FBGEMM_CONFIG = dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"])


def modelopt_config(algorithm: str, **more: int) -> dict:
    """It is in a file of its own."""
    quantization = dict(quant_algo=algorithm, kv_cache_quant_algo=None, exclude_modules=["lm_head"])
    return dict(producer=dict(name="modelopt", version="0.40.0"), quantization=quantization | more)


# The model, the block of a matrix, what follows `weight` in the name of the scales, their type, the configuration.
FLOAT8_DIRECTORIES = {
    "qwen3moe-fp8-blocks": (EDGES, of_blocks, "_scale_inv", torch.float32, BLOCK_CONFIG),
    "llama-fp8-channels": (LLAMA, of_outputs, "_scale", torch.bfloat16, float8_config("channel")),
    "llama-fp8-tensors": (LLAMA, of_matrix, "_scale", torch.float32, float8_config("tensor")),
    "llama-fbgemm-fp8": (LLAMA, of_outputs, "_scale", torch.float32, FBGEMM_CONFIG),
    "llama-mxfp8": (LLAMA, of_groups, "_scale_inv", torch.uint8, MXFP8_CONFIG),
    "llama-modelopt-fp8": (LLAMA, of_matrix, "_scale", torch.float32, modelopt_config("FP8")),
}

FLOAT4_NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# Queries have 16 values a head, so that the output of attention has twice as many values as a row.
GPT_OSS = (GptOssForCausalLM, GptOssConfig(
    num_local_experts=4, num_experts_per_tok=3, intermediate_size=96, sliding_window=24, rms_norm_eps=1e-5,
    layer_types=["sliding_attention", "full_attention"],
    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                         original_max_position_embeddings=512), **SIZES))  # fmt: skip


def float4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers [.., outputs, inputs] and the powers of two [.., outputs, groups] of matrices: scales are less 127."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    scales = torch.floor(torch.log2(groups.abs().amax(-1))).to(torch.int32) - 2 + 127
    scaled = groups / torch.exp2(scales.float() - 127)[..., None]
    nearest = (scaled.abs()[..., None] - FLOAT4_NUMBERS).abs().argmin(-1)
    return (FLOAT4_NUMBERS[nearest] * scaled.sign()).reshape(weight.shape), scales.to(torch.uint8)


def float4_values(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What numbers and scales stand for."""
    powers = torch.exp2(scales.float() - 127)[..., None]
    return (numbers.reshape(*scales.shape, 32) * powers).reshape(numbers.shape)


def packed_float4(numbers: torch.Tensor) -> torch.Tensor:
    return pack_fp4_to_uint8(numbers.reshape(-1, numbers.shape[-1])).reshape(*numbers.shape[:-1], -1)


def blocks_of_experts(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """The tensors of stacked matrices [experts, inputs, outputs] in rows of outputs, and what they stand for."""
    if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return None
    numbers, scales = float4(value.transpose(1, 2))
    files = {f"{key}_blocks": packed_float4(numbers).reshape(*scales.shape, 16), f"{key}_scales": scales}
    return files, float4_values(numbers, scales).transpose(1, 2).contiguous()


def blocks_of_modules(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    if not is_quantized(key):
        return None
    numbers, scales = float4(value)
    stem = key.removesuffix("weight")
    return {f"{stem}weight_packed": packed_float4(numbers), f"{stem}weight_scale": scales}, float4_values(numbers, scales)


def powers_of_blocks(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """Experts in 4 bits and other projections in 8, all with powers of two as scales."""
    if not is_quantized(key) or value.shape[1] % 32:
        return None
    stem = key.removesuffix("weight")
    if ".experts." in key:
        numbers, scales = float4(value)
        files = {key: packed_float4(numbers).view(torch.int8), f"{stem}scale": scales.view(torch.float8_e8m0fnu)}
        return files, float4_values(numbers, scales)
    codes, scales = float8(value, (128, 128))
    scales = torch.exp2(torch.ceil(torch.log2(scales))).to(torch.float8_e8m0fnu)
    spread = float8_values(torch.ones_like(value), scales.float(), (128, 128))
    codes = (value / spread).to(torch.float8_e4m3fn)
    return {key: codes, f"{stem}scale": scales}, float8_values(codes, scales.float(), (128, 128))


def float4_with_factor(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The numbers [outputs, inputs], the scales of 16 of them in 8-bit floating point, and the factor of a matrix."""
    groups = weight.reshape(weight.shape[0], -1, 16)
    factor = weight.abs().max() / (6 * torch.finfo(torch.float8_e4m3fn).max)
    scales = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    scaled = groups / (scales.float() * factor)[..., None]
    nearest = (scaled.abs()[..., None] - FLOAT4_NUMBERS).abs().argmin(-1)
    return (FLOAT4_NUMBERS[nearest] * scaled.sign()).reshape(weight.shape), scales, factor


def nvfp4_of_modules(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    if not is_quantized(key):
        return None
    numbers, scales, factor = float4_with_factor(value)
    inverse, stem = (1 / factor).reshape(1), key.removesuffix("weight")
    stood_for = numbers.reshape(*scales.shape, 16) * (scales.float() / inverse)[..., None]
    files = {"weight_packed": packed_float4(numbers), "weight_scale": scales, "weight_global_scale": inverse,
             "input_global_scale": torch.tensor([2.0])}  # fmt: skip
    return {f"{stem}{part}": tensor for part, tensor in files.items()}, stood_for.reshape(value.shape)


def nvfp4_of_modelopt(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    if not is_quantized(key):
        return None
    numbers, scales, factor = float4_with_factor(value)
    stood_for = numbers.reshape(*scales.shape, 16) * (scales.float() * factor)[..., None]
    files = {"": packed_float4(numbers), "_scale": scales, "_scale_2": factor}
    input_scale = {key.removesuffix("weight") + "input_scale": torch.tensor(0.5)}
    return {f"{key}{part}": tensor for part, tensor in files.items()} | input_scale, stood_for.reshape(value.shape)


def of_bitsandbytes(key: str, value: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """The scales of the first layer are quantized too."""
    if not is_quantized(key):
        return None
    codes, state = bitsandbytes.functional.quantize_4bit(
        value.contiguous(), blocksize=64, quant_type="nf4", compress_statistics=".layers.0." in key
    )
    files = {f"{key}.{part}": tensor for part, tensor in state.as_dict(packed=True).items()}
    return {key: codes} | files, bitsandbytes.functional.dequantize_4bit(codes, state)


BITSANDBYTES_CONFIG = dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4",
                           bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="bfloat16",
                           bnb_4bit_quant_storage="uint8", llm_int8_skip_modules=["lm_head"])  # fmt: skip


def float4_config(name: str, strategy: str, group: int) -> dict:
    weights = dict(num_bits=4, type="float", symmetric=True, strategy=strategy, group_size=group, dynamic=False)
    groups = dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None))
    return dict(quant_method="compressed-tensors", format=name, config_groups=groups, ignore=["lm_head"])


# More columns than those of the plain checkpoint, so that most matrices can be quantized.
DEEPSEEK4 = (DeepseekV4ForCausalLM, DeepseekV4Config(**(pooled_attention.CHECKPOINTS["deepseek4"].config | dict(
    hidden_size=64, q_lora_rank=32, o_lora_rank=32, intermediate_size=32, num_hidden_layers=3, index_topk=6, index_n_heads=16,
    layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    mlp_layer_types=["hash_moe"] + ["moe"] * 2))))  # fmt: skip
DEEPSEEK4_CONFIG = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[128, 128])
NVFP4_CONFIG = modelopt_config("NVFP4", group_size=16)


# The model, how its matrices are packed, the configuration.
FLOAT4_DIRECTORIES = {
    "gpt-oss-mxfp4": (GPT_OSS, blocks_of_experts, dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])),
    "llama-mxfp4": (LLAMA, blocks_of_modules, float4_config("mxfp4-pack-quantized", "group", 32)),
    "llama-nvfp4": (LLAMA, nvfp4_of_modules, float4_config("nvfp4-pack-quantized", "tensor_group", 16)),
    "llama-modelopt-nvfp4": (LLAMA, nvfp4_of_modelopt, NVFP4_CONFIG),
    "qwen3moe-modelopt-nvfp4": (EXPERTS, nvfp4_of_modelopt, NVFP4_CONFIG),
    "llama-bitsandbytes": (LLAMA, of_bitsandbytes, BITSANDBYTES_CONFIG),
    "deepseek4-fp8-fp4": (DEEPSEEK4, powers_of_blocks, DEEPSEEK4_CONFIG),
}


def float4_files(name: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of files with codes of 4 bits in floating point. Changes the state to what they stand for."""
    files = {}
    for key, value in state.items():
        packed = FLOAT4_DIRECTORIES[name][1](key, value)
        if packed is None:
            files[key] = state[key].contiguous()
            continue
        of_matrix, state[key] = packed
        files |= of_matrix
    return files


DIRECTORIES = {
    "llama-w4a16": (LLAMA, compressed, compressed_config, 4, 32, torch.bfloat16),
    "llama-w8a16": (LLAMA, compressed, compressed_config, 8, 64, torch.float16),
    "llama-gptq-4": (LLAMA, gptq, gptq_config, 4, 64, torch.float16),
    "qwen3moe-gptq-8": (EXPERTS, gptq, gptq_config, 8, 32, torch.float16),
    "llama-awq": (LLAMA, awq, awq_config, 4, 64, torch.float16),
    "llama-gptq-zeros": (LLAMA, gptq_v1, gptq_v1_config, 4, 32, torch.float16),
    "llama-gptq-v2-zeros": (LLAMA, gptq_v2, gptq_v2_config, 8, 64, torch.float16),
    "llama-w4a16-zeros": (LLAMA, compressed_with_zeros, compressed_zeros_config, 4, 64, torch.bfloat16),
    "llama-gptq-order": (LLAMA, gptq, gptq_order_config, 4, 32, torch.float16),
    "llama-w4a16-order": (LLAMA, compressed_with_zeros, compressed_order_config, 4, 64, torch.bfloat16),
    "llama-w8a8": (LLAMA, compressed_bytes, bytes_config, 8, 0, torch.bfloat16),
    "llama-w8a8-zeros": (LLAMA, compressed_bytes_with_zeros, bytes_zeros_config, 8, 0, torch.bfloat16),
}
# The tensor with the group of each input, where groups are in the order of activations.
ORDERED = {"llama-gptq-order": "g_idx", "llama-w4a16-order": "weight_g_idx"}
WITH_ZEROS = (awq, gptq_v1, gptq_v2, compressed_with_zeros, compressed_bytes_with_zeros)


def is_quantized(name: str) -> bool:
    return name.endswith("_proj.weight")


def stored_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with one matrix for each expert, as files have it."""
    out = {}
    for name, value in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = value
            continue
        stem = name.rsplit(".", 1)[0]
        for expert, matrix in enumerate(value):
            parts = dict(down_proj=matrix) if name.endswith(".down_proj") else dict(zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            out |= {f"{stem}.{expert}.{part}.weight": piece.contiguous() for part, piece in parts.items()}
    return out


def joined_experts(state: dict[str, torch.Tensor], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `stored_experts`."""
    out = {}
    for name, value in like.items():
        stem = name.rsplit(".", 1)[0]
        if name.endswith("experts.gate_up_proj"):
            pair = lambda expert: torch.cat([state[f"{stem}.{expert}.{part}.weight"] for part in ("gate_proj", "up_proj")])
            out[name] = torch.stack([pair(expert) for expert in range(len(value))])
        elif name.endswith("experts.down_proj"):
            out[name] = torch.stack([state[f"{stem}.{expert}.down_proj.weight"] for expert in range(len(value))])
        else:
            out[name] = state[name]
    return out


def has_stacks(config) -> bool:
    """Whether files have the matrices of all experts in one tensor, as the model has them."""
    return config.model_type == "gpt_oss"


def random_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Values of the size of trained ones."""
    like = model.state_dict() if has_stacks(model.config) else stored_experts(model.state_dict())
    return {key: random_value(key, value, model.config) for key, value in like.items()}


def random_value(key: str, value: torch.Tensor, config) -> torch.Tensor:
    if not value.is_floating_point():
        return torch.stack([torch.randperm(config.n_routed_experts)[: value.shape[1]] for _ in value])
    return 1 + 0.1 * torch.randn_like(value) if "norm" in key else torch.randn_like(value) / value.shape[-1] ** 0.5


def integer_files(name: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of files with integer codes. Changes the state to what they stand for."""
    _, pack, _, bits, group, dtype = DIRECTORIES[name]
    files = {}
    for key, value in state.items():
        if not is_quantized(key):
            files[key] = value
            continue
        quantize, values_of = (quantized_with_zeros, values_with_zeros) if pack in WITH_ZEROS else (quantized, values)
        inputs = value.shape[1]
        order = order_of(key, inputs) if name in ORDERED else torch.arange(inputs)
        places = torch.argsort(order)
        codes, *others = quantize(value[:, order], bits, group, dtype)
        state[key] = values_of(codes, *others)[:, places]
        packed = pack(codes[:, places].contiguous(), *others, bits)
        if name in ORDERED:
            packed[ORDERED[name]] = (places // (inputs // others[0].shape[1])).to(torch.int32)
        files |= {f"{key.removesuffix('weight')}{part}": tensor for part, tensor in packed.items()}
    return files


def float8_files(name: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of files with codes in floating point. Changes the state to what they stand for."""
    _, block_of, ending, dtype, _ = FLOAT8_DIRECTORIES[name]
    files = {}
    for key, value in state.items():
        if not is_quantized(key):
            files[key] = value.bfloat16()
            state[key] = files[key].float()
            continue
        block = block_of(value.shape)
        codes, scales = float8(value, block)
        if dtype == torch.uint8:
            powers = torch.exp2(torch.ceil(torch.log2(scales)))
            codes = (value / float8_values(torch.ones_like(value), powers, block)).to(torch.float8_e4m3fn)
            state[key] = float8_values(codes, powers, block)
            files |= {key: codes, f"{key}{ending}": powers.to(torch.float8_e8m0fnu).view(torch.uint8)}
            continue
        scales = scales.to(dtype)
        state[key] = float8_values(codes, scales.float(), block)
        one = scales.numel() == 1 and block_of is of_matrix
        files |= {key: codes, f"{key}{ending}": scales.reshape(1) if one else scales}
        if one:
            files[key.removesuffix("weight") + "input_scale"] = torch.tensor([0.5])
    return files


# How the tensors of files are made in each kind of directory.
KINDS = ((DIRECTORIES, integer_files), (FLOAT8_DIRECTORIES, float8_files), (FLOAT4_DIRECTORIES, float4_files))


def generate(name: str) -> None:
    has_integers = name in DIRECTORIES
    directories, files_of = next(kind for kind in KINDS if name in kind[0])
    (model_class, config) = directories[name][0]
    torch.manual_seed(sum(name.encode()))
    model = model_class(config).float().eval()
    like = model.state_dict()
    state = random_state(model)
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    files = files_of(name, state)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state if has_stacks(config) else joined_experts(state, like))
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    is_deepseek4 = config.model_type == "deepseek_v4"
    if is_deepseek4:
        files = published.renamed_all(files, published.DEEPSEEK4_NAMES)
    save_file(files, folder / "model.safetensors")
    quantization = directories[name][2](*directories[name][3:5]) if has_integers else directories[name][-1]
    text = config.to_diff_dict() | dict(architectures=[model_class.__name__])
    if is_deepseek4:
        text = published.deepseek4_config(model) | dict(expert_dtype="fp4")
    if "producer" in quantization:
        (folder / "hf_quant_config.json").write_text(json.dumps(quantization, indent=1) + "\n")
    else:
        text["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(text, indent=1, default=str) + "\n")
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, vocabulary.SIZE, size=length).tolist() for length in ((5, 37, 140) if is_deepseek4 else (5, 37))]
    oracle.write_json(folder / "expected.json", {"prompts": [oracle.prompt_case(model, prompt, 4) for prompt in prompts]})
    print(name, sum(path.stat().st_size for path in folder.iterdir()) // 1024, "KiB")


for directory in sys.argv[1:] or [name for directories, _ in KINDS for name in directories]:
    generate(directory)
