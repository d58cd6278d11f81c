"""Writes log-probabilities of fixed texts under real models, from transformers on the dequantised weights of the GGUF.

    python tests/generate/real_models.py FOLDER [NAME ...]      (FOLDER: the output of tests/fetch_models.py)

Writes `tests/fixtures/real/NAME.json`. Needs torch, transformers and gguf, a built `cuelight` for the tokens of the
long text, and 10 GB of memory for the largest model.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

import oracle
from families import GEMMA3, LLAMA, QWEN2, Family, layout_of, rope

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "real"

# Perplexity is measured over whole windows of WINDOW tokens of this file.
LONG_TEXT = "LICENSE-APACHE"
WINDOW = 512

PROSE = (
    "The bridge over the river had been closed since the spring, and the people of the two villages, who until then "
    "had met every day without thinking about it, discovered how far apart they really lived. To visit a cousin you "
    "now drove forty kilometres. The baker lost half of his customers, and the school lost eleven children. In the "
    "autumn the council announced that repairs would take another two years, and that evening somebody rowed across "
    "with a lantern and a basket of bread."
)
CODE = '''\
def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping intervals and return them sorted by start."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
'''
CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue? Answer in two sentences.<|im_end|>\n"
    "<|im_start|>assistant\nSunlight is scattered by the molecules of the air, and short wavelengths such as blue are "
    "scattered far more strongly than long ones such as red. The blue light therefore reaches our eyes from every "
    "direction of the sky.<|im_end|>\n"
)
MIXED = (
    "Facts: water boils at 100 °C at sea level; 17 × 23 = 391; the capital of France is Paris. In German: Das Wasser "
    "kocht bei hundert Grad. En français : l'eau bout à cent degrés. 日本語では、水は百度で沸騰します。"
)


@dataclass(frozen=True)
class RealModel:
    """A file with its digest, and its family for the transformers configuration."""

    file: str
    sha256: str
    family: Family
    texts: dict[str, str]


MODELS = {
    "smollm2-135m-instruct": RealModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        LLAMA,
        {"prose": PROSE, "code": CODE, "chat": CHAT},
    ),
    "gemma-3-270m": RealModel(
        "gemma-3-270m.Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        GEMMA3,
        {"prose": PROSE, "code": CODE, "mixed": MIXED},
    ),
    "qwen2.5-coder-1.5b-instruct": RealModel(
        "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        QWEN2,
        {"prose": PROSE, "code": CODE, "chat": CHAT},
    ),
}


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        generate(name, MODELS[name], folder)


def generate(name: str, real: RealModel, folder: Path) -> None:
    """Writes the expected values of one model."""
    path = folder / real.file
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == real.sha256, f"{path} is another file"
    reader = gguf.GGUFReader(path)
    model = dequantised_model(reader, real.family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=real.file)
    cases = [text_case(model, tokenizer, kind, text, bos_of(reader)) for kind, text in real.texts.items()]
    perplexity = perplexity_case(model, long_text_tokens(path), bos_of(reader))
    oracle.write_json(FOLDER / f"{name}.json", {
        "model": real.file,
        "bytes": path.stat().st_size,
        "sha256": real.sha256,
        "oracle": f"transformers {transformers.__version__} {real.family.model.__name__}, float32, dequantised weights",
        "perplexity": perplexity,
        "texts": cases,
    })  # fmt: skip
    for scored in perplexity["scored"]:
        print(f"{name:30} perplexity of {scored['tokens']} tokens: {np.exp(scored['mean_nats']):.4f}", flush=True)
    for case in cases:
        mean = -np.mean(case["logprobs"])
        print(f"{name:30} {case['text']:6} {len(case['tokens']):4} tokens, {mean:.3f} nat a token", flush=True)


def text_case(model: torch.nn.Module, tokenizer, kind: str, text: str, bos: list[int]) -> dict:
    """Next-token log-probabilities, and for each position the tokens that are almost as likely as the best."""
    tokens = bos + tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = oracle.log_probs(model, tokens)
    return {
        "text": kind,
        "tokens": tokens,
        "logprobs": [oracle.rounded(rows[i, tokens[i + 1]]) for i in range(len(tokens) - 1)],
        "near": [near(row) for row in rows],
    }


def long_text_tokens(path: Path) -> list[int]:
    """The long text's tokens, with BOS where the file sets one, from Cuelight, which tokenizes like llama.cpp.

    Transformers' conversion of a GGUF tokenizer splits runs of spaces differently.
    """
    programs = [ROOT / "target" / profile / "cuelight" for profile in ("release", "debug")]
    program = next(program for program in programs if program.exists())
    command = [program, "tokenize", path, "--no-parse-special", "--file", ROOT / LONG_TEXT]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def perplexity_case(model: torch.nn.Module, tokens: list[int], bos: list[int]) -> dict:
    """Mean negative log-likelihoods over the windows of a text, by the rules of `src/perplexity.rs`."""
    starts = range(0, len(tokens) - WINDOW + 1, WINDOW)
    windows = [bos + tokens[start + len(bos) : start + WINDOW] for start in starts]
    nats = np.array([token_nats(model, window) for window in windows])
    # Column i belongs to the token at index i + 1 of a window.
    rules = {"later half": nats[:, WINDOW // 2 :], "all": nats}
    return {
        "file": LONG_TEXT,
        "context": WINDOW,
        "tokens": tokens,
        "scored": [
            {"rule": rule, "tokens": scored.size, "mean_nats": oracle.rounded(scored.mean())}
            for rule, scored in rules.items()
        ],
    }


def token_nats(model: torch.nn.Module, tokens: list[int]) -> list[float]:
    """The negative log-likelihood of every token except the first."""
    rows = oracle.log_probs(model, tokens)
    return [-rows[i, tokens[i + 1]] for i in range(len(tokens) - 1)]


def near(row: np.ndarray) -> list:
    """The best token and those within half a nat of it, best first, as [id, log-probability] pairs."""
    order = np.argsort(-row, kind="stable")[:16]
    return [[int(token), oracle.rounded(row[token])] for token in order if row[token] > row[order[0]] - 0.5]


def bos_of(reader: gguf.GGUFReader) -> list[int]:
    """The token that starts every text, if the file sets one."""
    wanted = reader.get_field("tokenizer.ggml.add_bos_token")
    return [int(reader.get_field("tokenizer.ggml.bos_token_id").contents())] if wanted and wanted.contents() else []


def dequantised_model(reader: gguf.GGUFReader, family: Family) -> torch.nn.Module:
    """The Hugging Face model with the file's weights."""
    config = configuration(reader, family)
    model = family.model(config).eval()
    names = gguf.get_tensor_name_map(family.architecture, config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            tensor = stored.pop(names.get_name(key, try_suffixes=(".weight", ".bias")))
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(parameter.shape)
            layout = layout_of(key, family, config)
            parameter.copy_(torch.tensor(np.ascontiguousarray(layout.out_of_file(values))))
    assert not stored, f"not used: {sorted(stored)}"
    return model


def configuration(reader: gguf.GGUFReader, family: Family):
    """The file's metadata as a transformers configuration."""
    architecture = gguf.MODEL_ARCH_NAMES[family.architecture]

    def read(key: str, default=None):
        found = reader.get_field(f"{architecture}.{key}")
        return default if found is None else found.contents()

    options = dict(
        vocab_size=len(reader.get_field("tokenizer.ggml.tokens").data),
        hidden_size=read("embedding_length"),
        intermediate_size=read("feed_forward_length"),
        num_hidden_layers=read("block_count"),
        num_attention_heads=read("attention.head_count"),
        num_key_value_heads=read("attention.head_count_kv"),
        max_position_embeddings=read("context_length"),
        rms_norm_eps=read("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
        rope_parameters=rope(theta=read("rope.freq_base", 10000.0)),
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    if family is GEMMA3:
        options["head_dim"] = options["query_pre_attn_scalar"] = read("attention.key_length")
        options["sliding_window"] = read("attention.sliding_window")
        options["rope_parameters"] = {"full_attention": options["rope_parameters"], "sliding_attention": rope()}
    return family.config(**options, attn_implementation="eager")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
