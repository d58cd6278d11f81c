"""Weights and configurations as they were published, where transformers has no class that saves them so."""

import math
import re
from functools import partial
from typing import Callable

import torch

import parts
import several_streams

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


def grouped_projections(state: dict[str, torch.Tensor], config, layer: int) -> torch.Tensor:
    """For each head of keys its query heads, the key and the value."""
    groups, width = config.num_key_value_heads, config.hidden_size
    parts = [state.pop(f"model.layers.{layer}.self_attn.{name}_proj.weight") for name in "qkv"]
    return torch.cat([part.view(groups, -1, width) for part in parts], dim=1).reshape(-1, width)


def internlm2(model: torch.nn.Module) -> Published:
    """Llama's layers under other names, with queries, keys and values in one tensor."""
    state, config = state_of(model), model.config
    for layer in range(config.num_hidden_layers):
        state[f"model.layers.{layer}.attention.wqkv.weight"] = grouped_projections(state, config, layer)
    renamed = {
        "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
        "embed_tokens": "tok_embeddings", "lm_head": "output",
    }  # fmt: skip
    values = config.to_dict()
    rotation = dict(rope_theta=values["rope_parameters"]["rope_theta"], rope_scaling=dict(type="dynamic", factor=2.0))
    return renamed_all(state, renamed), without(values, "rope_parameters") | rotation | dict(
        model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=False)  # fmt: skip


def renamed_all(state: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    weights = {}
    for name, values in state.items():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = values
    return weights


LING_NAMES = {
    "self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm", "embed_tokens": "word_embeddings",
    "gate.e_score_correction_bias": "gate.expert_bias",
}  # fmt: skip


def ling(model: torch.nn.Module, rotates_neighbours: bool, changes: Callable[[dict], dict]) -> Published:
    """Queries, keys and values in one tensor, and a tensor for each matrix of each expert."""
    state, config = state_of(model), model.config
    for layer in range(config.num_hidden_layers):
        before = f"model.layers.{layer}"
        query, key, value = (state.pop(f"{before}.self_attn.{name}_proj.weight") for name in "qkv")
        if rotates_neighbours:
            query = in_halves(query, config.num_attention_heads)
            key = in_halves(key, config.num_key_value_heads)
        state[f"{before}.attention.query_key_value.weight"] = torch.cat([query, key, value])
        state.pop(f"{before}.mlp.gate.moe_statics.e_score_correction_bias", None)
        if (fused := state.pop(f"{before}.mlp.experts.gate_up_proj", None)) is not None:
            down = state.pop(f"{before}.mlp.experts.down_proj")
            for expert, (first, last) in enumerate(zip(fused, down)):
                gate, up = first.chunk(2)
                for name, matrix in dict(gate=gate, up=up, down=last).items():
                    state[f"{before}.mlp.experts.{expert}.{name}_proj.weight"] = matrix
    config = changes(config.to_dict()) | dict(model_type="bailing_moe", norm_head=False, norm_topk_prob=True)
    return renamed_all(state, LING_NAMES), config


LING3_NAMES = {
    "self_attn.forget_gate.": "attention.", "self_attn.": "attention.", "embed_tokens": "word_embeddings",
    "gate.e_score_correction_bias": "gate.expert_bias",
}  # fmt: skip


def ling3_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Under the names of the publisher, with a kernel for queries, keys and values each."""
    weights = {}
    for name, values in renamed_all(state, LING3_NAMES).items():
        if name.endswith(".conv1d.weight"):
            for kind, part in zip("qkv", values.chunk(3)):
                weights[name.replace("conv1d", f"{kind}_conv1d")] = part.contiguous()
        else:
            weights[name] = values
    return weights


def in_halves(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows whose pairs are neighbours, as pairs in the two halves of a head."""
    return values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)


def ling1_config(config: dict) -> dict:
    moved = dict(num_experts="moe_num_experts", num_experts_per_tok="moe_k", num_shared_experts="moe_num_shared_experts")
    kept = {key: value for key, value in config.items() if not key.startswith("moe_") or key == "moe_intermediate_size"}
    return kept | {new: config[old] for new, old in moved.items()} | dict(first_k_dense_replace=0)


def ling2_config(config: dict) -> dict:
    moved = dict(num_experts="n_routed_experts", num_shared_experts="n_shared_experts")
    kept = without(config, *moved.values())
    return kept | {new: config[old] for new, old in moved.items()} | dict(score_function="sigmoid", use_qk_norm=True)


def without_attention(model: torch.nn.Module) -> Published:
    """Published configurations say nothing of heads and of a context."""
    return state_of(model), without(model.config.to_dict(), "num_attention_heads", "max_position_embeddings")


def mimo2(model: torch.nn.Module) -> Published:
    """A tensor for each matrix of each expert, and lists and sizes under other names."""
    state, config = with_single_experts(state_of(model)), model.config.to_dict()
    kinds = [int(kind == "sliding_attention") for kind in config["layer_types"]]
    rotations = config["rope_parameters"]
    heads, windowed = config["num_key_value_heads"], rotations["sliding_attention"]
    usual = without(config, "layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps")
    return renamed_all(state, {"self_attn.sinks": "self_attn.attention_sink_bias"}), usual | dict(
        hybrid_layer_pattern=kinds, moe_layer_freq=[int(kind == "sparse") for kind in config["mlp_layer_types"]],
        layernorm_epsilon=config["rms_norm_eps"], rope_theta=rotations["full_attention"]["rope_theta"],
        swa_rope_theta=windowed["rope_theta"], partial_rotary_factor=windowed["partial_rotary_factor"],
        # The window without a row's own position.
        sliding_window=config["sliding_window"] - 1, sliding_window_size=config["sliding_window"] - 1,
        swa_num_attention_heads=config["num_attention_heads"], swa_num_key_value_heads=2 * heads,
        swa_head_dim=config["head_dim"], swa_v_head_dim=config["v_head_dim"], n_shared_experts=None,
        routed_scaling_factor=None, scoring_func="sigmoid", topk_method="noaux_tc", n_group=1, topk_group=1)  # fmt: skip


def with_single_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A tensor for each matrix of each expert instead of tensors of all."""
    single = {}
    for name, values in state.items():
        before, _, last = name.rpartition(".experts.")
        if last == "gate_up_proj":
            for expert, matrix in enumerate(values):
                for part, half in zip(("gate", "up"), matrix.chunk(2)):
                    single[f"{before}.experts.{expert}.{part}_proj.weight"] = half
        elif last == "down_proj":
            single |= {f"{before}.experts.{expert}.down_proj.weight": matrix for expert, matrix in enumerate(values)}
        else:
            single[name] = values
    return single


GLM5_NAMES = {"model.": "model.language_model.", "forget_gate.": "", "attn_hc.": "hc_attn_", "ffn_hc.": "hc_ffn_"}


def glm5_next(model: torch.nn.Module) -> Published:
    """The text of a model that also sees images: three convolutions and single experts, and an object for the delta rule."""
    weights = {}
    for name, values in with_single_experts(state_of(model)).items():
        for old, new in GLM5_NAMES.items():
            name = name.replace(old, new, 1)
        if name.endswith(".conv1d.weight"):
            parts = zip("qkv", values.chunk(3))
            weights |= {name.replace("conv1d", f"{kind}_conv1d"): part for kind, part in parts}
        else:
            weights[name] = values
    text = model.config.to_dict()
    delta = dict(
        short_conv_kernel_size=text["linear_conv_kernel_dim"], head_dim=text["linear_head_dim"],
        num_heads=text["linear_num_heads"], gate_lower_bound=text["linear_lower_bound"], safe_gate=True)  # fmt: skip
    kinds = ["linear_attention" if kind == "linear_attention" else "full_attention" for kind in text["layer_types"]]
    text = without(text, "linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads", "linear_lower_bound", "head_dim")
    text |= dict(linear_attn_config=delta, layer_types=kinds, first_k_dense_replace=1, mla_use_nope=True)
    return weights, {"model_type": "glm5_next", "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}


KIMI3_NAMES = {
    "forget_gate.": "", "self_attn.g_a_proj": "self_attn.g_proj", "model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}  # fmt: skip
KIMI3_SCORES = {"attn_res_score": "self_attention_res", "ffn_res_score": "mlp_res", "output_res_score": "output_attn_res"}


def kimi3(model: torch.nn.Module) -> Published:
    """The text of a model that also sees images: three convolutions, single experts, and scores as a norm and a projection."""
    weights, text = {}, model.config.to_dict()
    for name, values in with_single_experts(state_of(model)).items():
        for old, new in KIMI3_NAMES.items():
            name = name.replace(old, new, 1)
        if ".mlp." in name and text["mlp_layer_types"][int(name.split(".")[3])] == "sparse":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if ".block_sparse_moe.experts." in name:
            name = next(name.replace(old, new) for old, new in MINIMAX3_EXPERTS.items() if old in name)
        score = next((old for old in KIMI3_SCORES if old in name), None)
        if score:
            # Powers of two, so that the product is exact.
            norm = torch.tensor([0.5, 2.0]).repeat(len(values) // 2)
            parts = {"norm": norm, "proj": (values / norm)[None]}
            weights |= {name.replace(score, f"{KIMI3_SCORES[score]}_{kind}"): part for kind, part in parts.items()}
        elif name.endswith(".conv1d.weight"):
            parts = zip("qkv", values.chunk(3))
            weights |= {name.replace("conv1d", f"{kind}_conv1d"): part for kind, part in parts}
        else:
            weights[name] = values
    weights |= {"vision_tower.encoder.final_layernorm.weight": torch.ones(4), "mm_projector.proj.0.bias": torch.ones(4)}
    numbers = {kind: [layer + 1 for layer, of_layer in enumerate(text["layer_types"]) if of_layer == kind]
               for kind in ("full_attention", "linear_attention")}  # fmt: skip
    delta = dict(
        full_attn_layers=numbers["full_attention"], kda_layers=numbers["linear_attention"],
        gate_lower_bound=text["linear_lower_bound"], head_dim=text["linear_head_dim"], num_heads=text["linear_num_heads"],
        short_conv_kernel_size=text["linear_conv_kernel_dim"], use_full_rank_gate=True)  # fmt: skip
    removed = ("linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads", "linear_lower_bound", "head_dim",
               "layer_types", "mlp_layer_types", "situ_beta", "situ_linear_beta", "latent_size")  # fmt: skip
    text = without(text, *removed) | dict(
        model_type="kimi_linear", hidden_act="situ", linear_attn_config=delta, first_k_dense_replace=1, moe_layer_freq=1,
        activation_situ_beta=text["situ_beta"], activation_situ_linear_beta=text["situ_linear_beta"] or None,
        routed_expert_hidden_size=text["latent_size"], latent_moe_use_norm=True, moe_router_activation_func="sigmoid",
        mla_use_nope=True, mla_use_output_gate=True, num_nextn_predict_layers=0, topk_method="noaux_tc")  # fmt: skip
    return weights, {"model_type": "kimi_k3", "text_config": text, "tie_word_embeddings": False}


# Longer names come first.
DEEPSEEK4_NAMES = {
    "self_attn.compressor.indexer.scorer.weights_proj": "attn.indexer.weights_proj",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    "self_attn.compressor.indexer.": "attn.indexer.compressor.", "self_attn.": "attn.",
    "compressor.kv_proj": "compressor.wkv", "compressor.gate_proj": "compressor.wgate",
    "compressor.kv_norm": "compressor.norm", "compressor.position_bias": "compressor.ape",
    "attn.q_a_proj": "attn.wq_a", "attn.q_a_norm": "attn.q_norm", "attn.q_b_proj": "attn.wq_b", "attn.kv_proj": "attn.wkv",
    "attn.o_a_proj": "attn.wo_a", "attn.o_b_proj": "attn.wo_b", "attn.sinks": "attn.attn_sink",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "attn_hc.": "hc_attn_", "ffn_hc.": "hc_ffn_",
    "mlp.": "ffn.", "gate.e_score_correction_bias": "gate.bias", ".gate_proj.": ".w1.", ".down_proj.": ".w2.", ".up_proj.": ".w3.",
    "model.hc_head.hc_": "hc_head_", "model.embed_tokens": "embed", "lm_head": "head", "model.": "",
}  # fmt: skip


def deepseek4_config(model: torch.nn.Module) -> dict:
    """The pools of each layer as numbers, and those of the layer that predicts one more token."""
    config = model.config.to_dict()
    rotation = config["rope_parameters"]["compress"]
    lengths = [config["compress_rates"].get(kind, 0) for kind in config["layer_types"]]
    removed = ("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor")
    return without(config, *removed) | dict(
        compress_ratios=lengths + [0], num_hash_layers=config["mlp_layer_types"].count("hash_moe"),
        qk_rope_head_dim=model.config.qk_rope_head_dim,
        rope_scaling=dict(type="yarn", factor=rotation["factor"], beta_fast=32, beta_slow=1,
                          original_max_position_embeddings=rotation["original_max_position_embeddings"]))  # fmt: skip


def qwen4exp(model: torch.nn.Module) -> Published:
    """The text of a model that also sees images, with the table of n-grams in parts and a layer that predicts one more token."""
    weights = {}
    for name, values in state_of(model).items():
        name = name.replace("model.", "model.language_model.", 1)
        if name.endswith("ngram_embedding.weight"):
            for part, rows in enumerate(values.chunk(model.config.split_ngram_parts)):
                weights[name.replace("weight", f"shard_{part}.weight")] = rows.clone()
        else:
            weights[name] = values
    weights["mtp.layers.0.self_attn.q_norm.weight"] = torch.zeros(model.config.head_dim)
    text = model.config.to_dict()
    kinds = [kind.replace("indexed", "full") for kind in text["layer_types"]]
    return weights, {
        "model_type": "qwen4_exp", "text_config": text | dict(layer_types=kinds, mtp_num_hidden_layers=1),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }  # fmt: skip


def deepseek4(model: torch.nn.Module) -> Published:
    """The names of DeepSeek's own code."""
    return renamed_all(with_single_experts(state_of(model)), DEEPSEEK4_NAMES), deepseek4_config(model)


HUNYUAN4_NAMES = {
    "self_attn.gate_proj": "self_attn.linear_gate", "self_attn.sinks": "self_attn.learnable_sink_param",
    "attn_hc.": "hc_attn_layer.hc_pre.hc_", "ffn_hc.": "hc_mlp_layer.hc_pre.hc_", "hc_head.hc_": "hc_head.hc_head_",
}  # fmt: skip


def hunyuan4(model: torch.nn.Module) -> Published:
    """Pairs of neighbours rotate, and one more layer predicts one more token."""
    weights, config = {}, model.config
    rules = several_streams.hunyuan4_rules(config)
    for name, values in state_of(model).items():
        if re.search(r"q_b_proj|kv_a_proj|indexer\.w[qk]|indexer\.k_norm", name):
            values = torch.from_numpy(parts.find(rules, name).into_file(values.numpy())[0])
        weights[name] = values
    weights = renamed_all(weights, HUNYUAN4_NAMES)
    weights["model.mtp_layers.0.enorm.weight"] = torch.ones(config.hidden_size)
    kinds = ["deepseek_sparse_attention"] * config.num_hidden_layers
    return weights, config.to_dict() | dict(
        layer_types=kinds, first_k_dense_replace=1, num_experts=config.n_routed_experts, num_key_value_heads=2,
        num_nextn_predict_layers=1, gated_mla=True, gating_type="elementwise", learnable_sink=True, enable_ihc=True,
        enable_lm_head_fp32=True)  # fmt: skip


MINIMAX3_NAMES = {
    "self_attn.indexer.": "self_attn.index_", "mlp.experts.": "block_sparse_moe.experts.",
    "mlp.gate.e_score_correction_bias": "block_sparse_moe.e_score_correction_bias", "mlp.gate.": "block_sparse_moe.gate.",
    "mlp.shared_experts.": "block_sparse_moe.shared_experts.", "lm_head.": "language_model.lm_head.",
    "model.": "language_model.model.",
}  # fmt: skip
MINIMAX3_EXPERTS = {".gate_proj.": ".w1.", ".down_proj.": ".w2.", ".up_proj.": ".w3."}


def minimax3(model: torch.nn.Module) -> Published:
    """The text of a model that also sees images, with single experts, and an object for the indexer. Other parts are not used."""
    weights = {}
    for name, values in with_single_experts(state_of(model)).items():
        if ".mlp.experts." in name:
            name = next(name.replace(old, new) for old, new in MINIMAX3_EXPERTS.items() if old in name)
        for old, new in MINIMAX3_NAMES.items():
            name = name.replace(old, new, 1) if not name.startswith("language_model.") else name
        halves = zip(("gate", "up"), values.chunk(2)) if "gate_up_proj" in name else [("gate_up", values)]
        weights |= {name.replace("gate_up", part): half for part, half in halves}
    weights |= {"vision_tower.vision_model.pre_layrnorm.weight": torch.ones(4), "patch_merge_mlp.linear_1.bias": torch.ones(4)}
    weights |= {"language_model.model.mtp.layers.0.enorm.weight": torch.ones(4)}
    text = model.config.to_dict()
    indexed = [int(kind != "full_attention") for kind in text["layer_types"]]
    indexer = dict(
        use_sparse_attention=True, sparse_index_dim=text["index_head_dim"], sparse_num_index_heads=text["index_n_heads"],
        sparse_topk_blocks=text["index_topk_blocks"], sparse_block_size=text["index_block_size"], sparse_init_block=0,
        sparse_local_block=text["index_local_blocks"], sparse_score_type="max", sparse_attention_freq=indexed,
        sparse_disable_index_value=indexed)  # fmt: skip
    rotation = text["rope_parameters"]
    experts = [int(kind == "sparse") for kind in text["mlp_layer_types"]]
    kept = {key: value for key, value in text.items() if not key.startswith("index_")}
    text = without(kept, "layer_types", "mlp_layer_types", "rope_parameters") | dict(
        model_type="minimax_m3", sparse_attention_config=indexer, moe_layer_freq=experts, hidden_act="swigluoai",
        scoring_func="sigmoid", n_shared_experts=1, rope_theta=rotation["rope_theta"], use_gemma_norm=True, swiglu_beta=1.0,
        partial_rotary_factor=rotation["partial_rotary_factor"], use_qk_norm=True, qk_norm_type="per_head",
        attention_output_gate=False, num_mtp_modules=1)  # fmt: skip
    return weights, {"model_type": "minimax_m3_vl", "text_config": text}


STEP_NAMES = {
    "mlp.gate.weight": "moe.gate.weight", "mlp.gate.e_score_correction_bias": "moe.router_bias",
    "mlp.experts.down_proj": "moe.down_proj.weight", "mlp.shared_experts": "share_expert",
}  # fmt: skip


def step35(model: torch.nn.Module) -> Published:
    """Two tensors for gates and the values that they multiply, and lists that go on with a layer that predicts one more token."""
    state, config = state_of(model), model.config.to_dict()
    for name in [name for name in state if name.endswith("mlp.experts.gate_up_proj")]:
        layer = name.removesuffix("mlp.experts.gate_up_proj")
        gate, up = state.pop(name).chunk(2, dim=1)
        state |= {f"{layer}moe.gate_proj.weight": gate, f"{layer}moe.up_proj.weight": up}
    kinds = config["layer_types"] + ["full_attention"]
    full, windowed = (config["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    by_kind = [windowed if kind == "sliding_attention" else full for kind in kinds]
    sparse = [str(layer) for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    heads = config["num_key_value_heads"]
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "moe_intermediate_size", "share_expert_dim", "sliding_window",
            "moe_router_scaling_factor", "tie_word_embeddings")  # fmt: skip
    return renamed_all(state, STEP_NAMES), {key: config[key] for key in kept} | dict(
        model_type="step3p5", architectures=["Step3p5ForCausalLM"], num_attention_groups=heads, layer_types=kinds,
        attention_other_setting=dict(
            attention_type="sliding_attention", num_attention_heads=config["num_sliding_attention_heads"],
            num_attention_groups=heads, head_dim=config["head_dim"]),
        rope_theta=[rotation["rope_theta"] for rotation in by_kind],
        partial_rotary_factors=[rotation["partial_rotary_factor"] for rotation in by_kind],
        rope_scaling=without(full, "rope_theta", "partial_rotary_factor"), yarn_only_types=["full_attention"],
        moe_num_experts=config["n_routed_experts"], moe_top_k=config["num_experts_per_tok"],
        moe_layers_enum=",".join(sparse), moe_every_n_layer=1, norm_expert_weight=True, moe_router_activation="sigmoid",
        use_moe_router_bias=True, use_head_wise_attn_gate=True, zero_centered=True, num_nextn_predict_layers=1,
        swiglu_limits=[float(limit) for limit in config["swiglu_limits"]] + [None],
        swiglu_limits_shared=[float(limit) for limit in config["swiglu_limits_shared"]] + [0.0])  # fmt: skip


def baichuan(model: torch.nn.Module) -> Published:
    """Llama's layers, with queries, keys and values one after the other. The deep models state their context only."""
    state, config = state_of(model), model.config.to_dict()
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}.self_attn."
        state[f"{before}W_pack.weight"] = torch.cat([state.pop(f"{before}{name}_proj.weight") for name in "qkv"])
    usual = without(config, "rope_parameters", "num_key_value_heads", "max_position_embeddings", "head_dim")
    return state, usual | dict(
        model_type="baichuan", architectures=["BaichuanForCausalLM"], model_max_length=config["max_position_embeddings"])


CHATGLM_NAMES = {
    "self_attn.o_proj": "self_attention.dense", "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h", "model.layers": "transformer.encoder.layers",
    "model.embed_tokens": "transformer.embedding.word_embeddings", "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
}  # fmt: skip


def chatglm(model: torch.nn.Module) -> Published:
    """GLM's layers under other names, with queries, keys and values one after the other."""
    state, config = state_of(model), model.config
    for layer in range(config.num_hidden_layers):
        before = f"model.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{before}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            state[f"{before}.self_attention.query_key_value.{kind}"] = torch.cat(parts)
    state["transformer.rotary_pos_emb.inv_freq"] = torch.ones(config.head_dim // 4)
    return renamed_all(state, CHATGLM_NAMES), dict(
        model_type="chatglm", architectures=["ChatGLMModel"], add_bias_linear=False, add_qkv_bias=True,
        apply_residual_connection_post_layernorm=False, ffn_hidden_size=config.intermediate_size,
        hidden_size=config.hidden_size, kv_channels=config.head_dim, layernorm_epsilon=config.rms_norm_eps,
        multi_query_attention=True, multi_query_group_num=config.num_key_value_heads, original_rope=True,
        num_attention_heads=config.num_attention_heads, num_layers=config.num_hidden_layers, post_layer_norm=True,
        padded_vocab_size=config.vocab_size, rmsnorm=True, seq_length=config.max_position_embeddings,
        rope_ratio=config.rope_parameters["rope_theta"] / 10000.0, tie_word_embeddings=False)  # fmt: skip


CHANGES: dict[str, Callable[[torch.nn.Module], Published]] = {
    "qwen2vl": partial(text_of_images, model_type="qwen2_5_vl"),
    "qwen3vl": partial(text_of_images, model_type="qwen3_vl"),
    "qwen3vlmoe": partial(text_of_images, model_type="qwen3_vl_moe"),
    "muse-glimmer": partial(text_of_images, model_type="muse_glimmer"),
    "glm5-next": glm5_next,
    "kimi-k3": kimi3,
    "kimi-k3-wide": kimi3,
    "deepseek4": deepseek4,
    "qwen4exp": qwen4exp,
    "hy_v4": hunyuan4,
    "minimax-m3": minimax3,
    "minicpm": minicpm,
    "exaone": exaone,
    "internlm2": internlm2,
    "mimo2": mimo2,
    "step35": step35,
    "baichuan": baichuan,
    "chatglm3": chatglm,
    "mamba": without_attention,
    "mamba-falcon": without_attention,
    "mamba2-groups": without_attention,
    "bailingmoe": partial(ling, rotates_neighbours=True, changes=ling1_config),
    "bailingmoe2": partial(ling, rotates_neighbours=False, changes=ling2_config),
}
