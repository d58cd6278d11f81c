"""Computes expected values with transformers: log-probabilities and greedy continuations."""

import json
from pathlib import Path

import numpy as np
import torch


@torch.inference_mode()
def log_probs(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    """[tokens, vocabulary] log-probabilities of the token after each position, in float64 from float32 logits."""
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def prompt_case(model: torch.nn.Module, tokens: list[int], continuation: int) -> dict:
    """Expected values of one prompt: next-token log-probabilities, the five best last tokens, and the greedy continuation."""
    rows = log_probs(model, tokens)
    best = np.argsort(-rows[-1], kind="stable")[:5]
    greedy, margins, sequence = [], [], list(tokens)
    for _ in range(continuation):
        last = log_probs(model, sequence)[-1]
        second, first = np.argsort(last, kind="stable")[-2:]
        greedy.append(int(first))
        margins.append(rounded(last[first] - last[second]))
        sequence.append(int(first))
    return {
        "tokens": tokens,
        "logprobs": [rounded(rows[i, tokens[i + 1]]) for i in range(len(tokens) - 1)],
        "top": [[int(token), rounded(rows[-1, token])] for token in best],
        "greedy": greedy,
        "margins": margins,
    }


def rounded(value: float) -> float:
    """Rounds to seven digits, which is finer than the agreement of float32 arithmetic."""
    return float(f"{value:.7g}")


def write_json(path: Path, value: dict) -> None:
    """Writes JSON with one line per prompt, so files are small and differences are easy to locate."""
    lines = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in item)
            lines.append(f"{json.dumps(key)}: [\n  {rows}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}")
    path.write_text("{" + ",\n ".join(lines) + "}\n", encoding="utf-8")
