"""Writes a tiny random Whisper, and what transformers hears in a clip and writes after it.

    python tests/generate/whisper.py      (needs torch, transformers, tokenizers)

Writes `tests/fixtures/whisper`:

- `directory`: the model as published on the Hugging Face Hub; a window has 96 frames instead of 3000
- not `harbour.ogg`, which is a sentence spoken by flite (voice slt)
- `expected.json`: the rows of the encoder for a clip, the log-probabilities of tokens after them, and when tokens are spoken
"""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import oracle
import vocabulary
from clips import FIXTURES, FRAMES, HOP, ROWS, clip

FOLDER = FIXTURES / "whisper"
SAMPLES = 11000
TEXT_TOKENS = 400
LANGUAGES = ["en", "zh", "de"]
TASKS = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
# 20 ms each, as many as rows.
TIMES = [f"<|{index * 0.02:.2f}|>" for index in range(ROWS + 1)]
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES + TASKS), *TIMES]
PROMPTS = [
    ["<|startoftranscript|>"],
    ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>", "The harbour was quiet", "<|endoftext|>"],
    ["<|startofprev|>", "Afterwards the children", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|0.00|>", "A good answer", "<|0.48|>"],
]

# Pairs of a layer and a head.
ALIGNMENT_HEADS = [[0, 1], [1, 0], [1, 3]]
# What is said in a clip: the tokens before the words, and the words.
SPOKEN = (["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"], "The harbour was quiet, and the boats")


def tokenizer_of_whisper():
    """Text first, then special tokens, then times."""
    tokenizer = vocabulary.byte_level([], TEXT_TOKENS)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def model_of(tokenizer) -> torch.nn.Module:
    end = tokenizer.token_to_id("<|endoftext|>")
    config = transformers.WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(), num_mel_bins=80, d_model=32, encoder_layers=3, encoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, max_source_positions=ROWS,
        max_target_positions=40, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=tokenizer.token_to_id("<|startoftranscript|>"), attn_implementation="eager",
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    rng = np.random.default_rng(7)
    for name, values in model.named_parameters():
        drawn = torch.from_numpy(rng.standard_normal(tuple(values.shape)).astype(np.float32))
        if name.endswith("layer_norm.weight"):
            drawn = 1 + drawn / 8
        elif values.ndim == 1:
            drawn = drawn / 8
        elif "embed_positions" in name:
            drawn = drawn / 2
        elif "embed_tokens" not in name:
            drawn = drawn * 1.5 / values[0].numel() ** 0.5
        values.data = drawn.half().float()
    model.tie_weights()
    return model


def settings(tokenizer) -> dict:
    """The `generation_config.json`, with the keys of a published one."""
    token = tokenizer.token_to_id
    return {
        "alignment_heads": ALIGNMENT_HEADS,
        "begin_suppress_tokens": [tokenizer.encode(" ").ids[0], token("<|endoftext|>")],
        "decoder_start_token_id": token("<|startoftranscript|>"),
        "eos_token_id": token("<|endoftext|>"),
        "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": token(f"<|{name}|>") for name in LANGUAGES},
        "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": token("<|notimestamps|>"),
        "suppress_tokens": [tokenizer.encode(text).ids[0] for text in '"()'],
        "task_to_id": {name: token(f"<|{name}|>") for name in TASKS[:2]},
    }


def write_directory(model: torch.nn.Module, tokenizer) -> None:
    directory = FOLDER / "directory"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model.save_pretrained(directory)
    weights = {name: values.half() for name, values in safetensors.torch.load_file(directory / "model.safetensors").items()}
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1).save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps(settings(tokenizer)) + "\n")


class Decoder:
    """The decoder after the rows of a clip, with the interface that `oracle` expects. The rows come before the tokens."""

    def __init__(self, model: torch.nn.Module, rows: torch.Tensor):
        self.model, self.rows = model, rows

    def __call__(self, input_ids: torch.Tensor, use_cache: bool):
        found = self.model(encoder_outputs=(self.rows,), decoder_input_ids=input_ids[:, ROWS:], use_cache=use_cache)
        before = torch.zeros(1, ROWS, found.logits.shape[2])
        return SimpleNamespace(logits=torch.cat([before, found.logits], dim=1))


def alignment(model: torch.nn.Module, tokenizer, rows: torch.Tensor) -> dict:
    """The weights of the heads, [positions, heads, frames], and the frame at which each word token and the end begin, as `timing.py` of
    Whisper's own program finds them, with the filter and the path of transformers."""
    before, words = ([tokenizer.token_to_id(token) for token in SPOKEN[0]], tokenizer.encode(SPOKEN[1]).ids)
    tokens = [*before, *words, tokenizer.token_to_id("<|endoftext|>")]
    inputs = dict(encoder_outputs=(rows,), decoder_input_ids=torch.tensor([tokens]), output_attentions=True)
    attentions = model(**inputs).cross_attentions
    weights = torch.stack([attentions[layer][0, head] for layer, head in ALIGNMENT_HEADS])
    frames = SAMPLES // (2 * HOP)
    heard = weights[..., :frames]
    heard = heard / heard.sum(dim=-1, keepdim=True)
    std, mean = torch.std_mean(heard, dim=-2, keepdim=True, unbiased=False)
    matrix = _median_filter(((heard - mean) / std)[None], 7)[0].mean(dim=0)
    text, time = _dynamic_time_warping(-matrix[len(before) - 1 : -1].double().numpy())
    starts = [int(time[np.argmax(text == index)]) for index in range(len(words) + 1)]
    return {
        "tokens": tokens,
        "first_word": len(before),
        "frames": frames,
        "weights": [oracle.rounded(value) for value in weights.transpose(0, 1).reshape(-1).tolist()],
        "starts": starts,
    }


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tokenizer = tokenizer_of_whisper()
    model = model_of(tokenizer)
    write_directory(model, tokenizer)
    padded = np.zeros(FRAMES * HOP, dtype=np.float32)
    padded[:SAMPLES] = clip(SAMPLES) / 32768
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    features = extractor(padded, sampling_rate=16000, padding=False, truncation=False, return_tensors="pt").input_features
    rows = model.model.encoder(features).last_hidden_state
    row_token = tokenizer.token_to_id("<|nospeech|>")
    cases = []
    for prompt in PROMPTS:
        tokens = [row_token] * ROWS + [token for part in prompt for token in tokenizer.encode(part).ids]
        case = oracle.prompt_case(Decoder(model, rows), tokens, 12)
        cases.append(case | {"logprobs": case["logprobs"][ROWS:]})
    weights = (FOLDER / "directory" / "model.safetensors").read_bytes()
    oracle.write_json(FOLDER / "expected.json", {
        "oracle": f"transformers {transformers.__version__} {type(model).__name__}, float32",
        "sha256": hashlib.sha256(weights).hexdigest(),
        "samples": SAMPLES,
        "row_token_id": row_token,
        "rows": [oracle.rounded(value) for value in rows.reshape(-1).tolist()],
        "prompts": cases,
        "alignment": alignment(model, tokenizer, rows),
    })  # fmt: skip
    print(f"{sum(file.stat().st_size for file in FOLDER.rglob('*')) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
