"""Tiny checkpoints as Hugging Face directories: the weights of the GGUF file of the same name, as transformers saves them.

    python tests/generate/directories.py [NAME ...]      (needs the same packages as families.py)

Writes `tests/fixtures/hugging_face/NAME` from `tests/fixtures/families/NAME.gguf`.
"""

import json
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch

import published
import vocabulary

# Those whose names, transformations or configurations differ.
NAMES = {
    "llama-rope-llama3", "gemma2-scale", "gemma3", "mixtral-small", "qwen3moe-small", "phi3", "phi3-long", "smollm3", "olmo3",
    "granite", "gemma", "gemma4-e", "gemma4-small", "qwen35", "qwen35moe", "gpt-oss-small", "glm4", "exaone4-small",
    "seed_oss", "mistral3", "llama-shards", "granite_swa", "granite_swa-moe", "mellum", "hy_v3", "hy_v4", "afmoe", "gpt2", "starcoder",
    "deepseek3", "mistral4", "deepseek32", "glm-dsa", "glm5-next", "deepseek4", "glm4-moe-lite", "youtu", "solar-open", "llama4", "granitemoe", "olmo", "phi2", "stablelm", "stablelm-parallel", "command-r",
    "command-r-heads",
    "ernie4_5-moe", "hunyuan-dense", "hunyuan-moe", "chatglm", "jais2", "gptneox", "gptneox-sequential", "falcon", "falcon-40b", "qwen3next",
    "kimi-linear", "kimi-k3", "kimi-k3-wide", "bailingmoe3", "lfm2", "lfm2moe", "lfm3", "granitehybrid", "granitehybrid-moe", "nemotron_h", "nemotron_h_moe-latent",
    "minimax-m2", "minimax-m3", "minimax-m3-local", "arcee", "starcoder2", "nemotron", "apertus", "laguna", "cohere2moe", "falcon-h1-factors", "qwen2vl",
    "qwen3vl", "qwen3vlmoe", "minicpm", "exaone", "muse-glimmer", "gemma3n", "bloom", "mpt",
    "mpt-limited", "dbrx-small", "internlm2", "bailingmoe", "bailingmoe2", "mamba", "mamba-falcon", "mamba2-groups", "jamba",
    "mimo2", "deci", "step35", "baichuan", "chatglm3", "qwen4exp",
}  # fmt: skip
KEPT = {"config.json", "model.safetensors.index.json"}


def write(folder: Path, model: torch.nn.Module) -> None:
    """Writes the weights and the configuration; one of them in shards, and with all that is needed for text."""
    shutil.rmtree(folder, ignore_errors=True)
    if change := published.CHANGES.get(folder.name):
        folder.mkdir(parents=True)
        weights, config = change(model)
        weights = {name: values.contiguous() for name, values in weights.items()}
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        return
    in_shards = folder.name == "llama-shards"
    model.save_pretrained(folder, max_shard_size="60KB" if in_shards else "1GB")
    for path in folder.iterdir():
        if path.name not in KEPT and path.suffix != ".safetensors":
            path.unlink()
    if in_shards:
        write_text(folder)


def write_text(folder: Path) -> None:
    """The tokenizer, its settings and the chat template."""
    vocabulary.byte_level().save(str(folder / "tokenizer.json"))
    settings = dict(bos_token="<|im_start|>", eos_token=dict(content="<|im_end|>"), add_bos_token=False,
                    chat_template=vocabulary.CHATML_TEMPLATE)  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[2, 0])) + "\n")


if __name__ == "__main__":
    import families

    for name in sys.argv[1:] or sorted(NAMES):
        families.write_directory(name)
