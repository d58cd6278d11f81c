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
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(settings["lora_alpha"]))
    for key, value in sorted(tensors.items()):
        parts = key.split(".")
        if "base_layer" in parts:
            continue
        if "layers" not in parts:
            module, half = next(part for part in parts if part in outside), key.removesuffix(".weight")[-1].lower()
            # A of the token embedding is looked up by token.
            values = value.numpy().T if (module, half) == ("embed_tokens", "a") else value.numpy()
            writer.add_tensor(f"{outside[module]}.weight.lora_{half}", np.ascontiguousarray(values))
            continue
        layer, module, half = parts[parts.index("layers") + 1], parts[-3], parts[-2][-1].lower()
        values = value.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(module)
        if half == "b" and heads:
            rows, rank = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, rank).swapaxes(1, 2).reshape(rows, rank)
        writer.add_tensor(f"blk.{layer}.{names[module]}.weight.lora_{half}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for seed, (name, base, config) in enumerate(ADAPTERS):
        write(name, base, config, seed + 1)
        print(name, flush=True)
