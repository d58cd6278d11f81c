"""Tiny low-rank adapters of the directories in tests/fixtures/hugging_face, and what PEFT computes with them.

usage: python tests/generate/lora.py
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file

import oracle

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDER = FIXTURES / "lora"
TOKENS = 40

# The adapter's name, its model, and its configuration.
ADAPTERS = [
    ("llama-a", "llama-shards", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("llama-b", "llama-shards", dict(r=3, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "k_proj", "down_proj"],
                                     rank_pattern={r"layers\.1\.self_attn\.q_proj": 5}, alpha_pattern={"k_proj": 9})),
    ("gemma3", "gemma3", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("phi3", "phi3", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("qwen35", "qwen35", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    ("llama-vocabulary", "llama-shards", dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])),
    ("granite-vocabulary", "granite", dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "lm_head"])),
    ("gemma3-vocabulary", "gemma3", dict(r=3, lora_alpha=6, target_modules=["embed_tokens"])),
]  # fmt: skip


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Both halves of every pair, so that the product is not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            # A row of an embedding's A is used for one token.
            fan = parameter.shape[0 if "lora_embedding_A" in name else 1]
            values = torch.randn(parameter.shape, generator=generator) * (0.5 / fan**0.5)
            parameter.data = values.to(torch.float16).to(torch.float32)


def write(name: str, base: str, config: dict, seed: int) -> None:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        FIXTURES / "hugging_face" / base, dtype=torch.float32, attn_implementation="eager"
    )
    adapted = peft.get_peft_model(model, peft.LoraConfig(bias="none", task_type="CAUSAL_LM", **config)).eval()
    randomise(adapted, seed)
    adapted.save_pretrained(folder)
    path = folder / "adapter_model.safetensors"
    halves = {key: value.to(torch.float16).contiguous() for key, value in load_file(path).items()}
    from safetensors.torch import save_file

    save_file(halves, path, metadata={"format": "pt"})
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    (folder / "README.md").unlink(missing_ok=True)
    vocabulary = model.config.get_text_config().vocab_size
    tokens = np.random.default_rng(seed).integers(3, vocabulary, TOKENS).tolist()
    oracle.write_json(folder / "expected.json", {"prompts": [oracle.prompt_case(adapted, tokens, 0)]})
    if name in ("llama-a", "llama-vocabulary"):
        write_gguf(FOLDER / f"{name}.gguf", halves, model.config, settings)


def write_gguf(path: Path, tensors: dict, config, settings: dict) -> None:
    """The same adapter as GGUF files hold it: other names, and the rows of rotated heads in another order."""
    outside = dict(embed_tokens="token_embd", lm_head="output")
    names = dict(q_proj="attn_q", k_proj="attn_k", v_proj="attn_v", o_proj="attn_output",
                 gate_proj="ffn_gate", up_proj="ffn_up", down_proj="ffn_down")  # fmt: skip
    renamed = {}
    for key, value in sorted(tensors.items()):
        parts = key.split(".")
        if "base_layer" in parts:
            continue
        if "layers" not in parts:
            module, half = next(part for part in parts if part in outside), key.removesuffix(".weight")[-1].lower()
            # A of the token embedding is looked up by token.
            values = value.numpy().T if (module, half) == ("embed_tokens", "a") else value.numpy()
            renamed[f"{outside[module]}.weight.lora_{half}"] = values
            continue
        layer, module, half = parts[parts.index("layers") + 1], parts[-3], parts[-2][-1].lower()
        values = value.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(module)
        if half == "b" and heads:
            rows, rank = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, rank).swapaxes(1, 2).reshape(rows, rank)
        renamed[f"blk.{layer}.{names[module]}.weight.lora_{half}"] = values
    write_tensors(path, "llama", settings["lora_alpha"], renamed)


def write_tensors(path: Path, architecture: str, alpha: float, tensors: dict) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(alpha))
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# The adapter's name, its model, and the modules of the experts as in checkpoints of transformers 4: the layer's module of experts,
# and the names of gate, up and down.
EXPERT_ADAPTERS = [
    ("qwen3moe-experts", "qwen3moe-small", "mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    ("mixtral-experts", "mixtral-small", "block_sparse_moe.experts", ["w1", "w3", "w2"]),
]


def write_of_experts(name: str, base: str, module: str, names: list[str], seed: int) -> None:
    """An adapter of each expert's projections. Transformers 5 holds the experts of a layer in two tensors, which PEFT does not
    divide. So the expected values are those of the model with the merged weights `W + alpha / r B A`."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rank, alpha = 3, 6
    model = transformers.AutoModelForCausalLM.from_pretrained(
        FIXTURES / "hugging_face" / base, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(seed)

    def half(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * (0.7 / shape[-1] ** 0.5)).to(torch.float16)

    tensors, stacked = {}, {}
    parameters = {key: value for key, value in model.named_parameters() if ".experts." in key}
    for layer in sorted({int(key.split(".")[2]) for key in parameters}):
        of = {key.split(".")[-1]: value for key, value in parameters.items() if key.split(".")[2] == str(layer)}
        width = of["down_proj"].shape[2]
        for expert in range(of["down_proj"].shape[0]):
            gate_up, down = of["gate_up_proj"].data[expert], of["down_proj"].data[expert]
            for kind, own, matrix in zip(["gate", "up", "down"], names, [gate_up[:width], gate_up[width:], down]):
                a, b = half(rank, matrix.shape[1]), half(matrix.shape[0], rank)
                matrix += alpha / rank * b.float() @ a.float()
                stem = f"base_model.model.model.layers.{layer}.{module}.{expert}.{own}"
                tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
                for end, value in (("a", a), ("b", b)):
                    stacked.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight.lora_{end}", []).append(value.numpy())
    from safetensors.torch import save_file

    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = dict(peft_type="LORA", r=rank, lora_alpha=alpha, bias="none", target_modules=names, base_model_name_or_path=base)
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    tokens = np.random.default_rng(seed).integers(3, model.config.vocab_size, TOKENS).tolist()
    oracle.write_json(folder / "expected.json", {"prompts": [oracle.prompt_case(model, tokens, 0)]})
    if name == "qwen3moe-experts":
        values = {key: np.stack(value) for key, value in stacked.items()}
        write_tensors(FOLDER / f"{name}.gguf", "qwen3moe", alpha, values)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for seed, (name, base, config) in enumerate(ADAPTERS):
        write(name, base, config, seed + 1)
        print(name, flush=True)
    for seed, (name, *of_experts) in enumerate(EXPERT_ADAPTERS):
        write_of_experts(name, *of_experts, 100 + seed)
        print(name, flush=True)
