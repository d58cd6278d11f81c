"""Weights and configurations as they were published, where transformers has no class that saves them so."""

import math
from functools import partial
from typing import Callable

import torch

Published = tuple[dict[str, torch.Tensor], dict]


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def text_of_images(model: torch.nn.Module, model_type: str) -> Published:
    """The text of a model that also sees images. Experts have a row for each input."""
    weights = {}
    for name, values in state_of(model).items():
        transposed = values.transpose(1, 2) if ".experts." in name else values
        weights[name.replace("model.", "model.language_model.", 1)] = transposed
    text = model.config.to_dict()
    return weights, {"model_type": model_type, "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}


def without(config: dict, *keys: str) -> dict:
    return {key: value for key, value in config.items() if key not in keys}


def minicpm(model: torch.nn.Module) -> Published:
    """Granite's layers with other factors."""
    config = model.config.to_dict()
    usual = without(config, "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    return state_of(model), usual | dict(
        model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=config["embedding_multiplier"],
        scale_depth=config["residual_multiplier"] * math.sqrt(config["num_hidden_layers"]),
        dim_model_base=config["hidden_size"] / config["logits_scaling"])  # fmt: skip


def exaone(model: torch.nn.Module) -> Published:
    """Llama's layers under other names."""
    renamed = {
        "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj",
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
    }  # fmt: skip
    weights = {}
    for name, values in state_of(model).items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        weights[name] = values
    config = model.config.to_dict()
    rotation = config["rope_parameters"]
    return weights, without(config, "num_hidden_layers", "hidden_act", "rope_parameters", "rms_norm_eps") | dict(
        model_type="exaone", architectures=["ExaoneForCausalLM"], num_layers=config["num_hidden_layers"],
        activation_function=config["hidden_act"], layer_norm_epsilon=config["rms_norm_eps"],
        rope_theta=rotation["rope_theta"], rope_scaling=without(rotation, "rope_theta"))  # fmt: skip


CHANGES: dict[str, Callable[[torch.nn.Module], Published]] = {
    "qwen2vl": partial(text_of_images, model_type="qwen2_5_vl"),
    "qwen3vl": partial(text_of_images, model_type="qwen3_vl"),
    "qwen3vlmoe": partial(text_of_images, model_type="qwen3_vl_moe"),
    "muse-glimmer": partial(text_of_images, model_type="muse_glimmer"),
    "minicpm": minicpm,
    "exaone": exaone,
}
