"""Writes tiny random models that classify texts as GGUF files and directories, and the logits that transformers computes with them.

    python tests/generate/classifiers.py [NAME ...]      (needs torch, transformers, gguf, sentencepiece, tokenizers)

Writes `tests/fixtures/classifiers/NAME.json`, the directory `NAME` as transformers saves it, and for encoders `NAME.gguf`.
"""

import hashlib
import sys
from pathlib import Path

import torch
import transformers

import embeddings
import oracle
import rerankers
import vocabulary

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "classifiers"
TEXTS = (
    ["The harbour was quiet before the storm."],
    ["rope"],
    ["It will rain by morning, the oldest of them said, and the others nodded, because he had been right."],
    ["Who tied the boats?", "The fishermen tied their boats twice."],
)
LABELS = ["calm", "wet", "bright", "lost"]


def labels(count: int) -> dict:
    named = dict(enumerate(LABELS[:count]))
    return dict(num_labels=count, id2label=named, label2id={name: label for label, name in named.items()})


def encoders() -> dict[str, rerankers.Encoder]:
    bert = transformers.BertConfig(**rerankers.encoder_sizes(
        max_position_embeddings=rerankers.POSITIONS, type_vocab_size=2,
    ) | labels(3))  # fmt: skip
    return {
        "bert": rerankers.Encoder(
            transformers.BertForSequenceClassification, bert, rerankers.word_piece, embeddings.write_word_piece,
            {"bert.pooler.dense": "cls", "classifier": "cls.output"},
        ),
        "modern-bert": rerankers.modern_bert(
            pooling="cls", problem_type="multi_label_classification", **labels(4)
        ),
    }  # fmt: skip


def write_encoder(name: str, encoder: rerankers.Encoder) -> None:
    network, tokenizer = rerankers.new_network(name, encoder.model, encoder.config), encoder.tokenizer()
    rerankers.write_encoder_file(FIXTURES / f"{name}.gguf", encoder, network, tokenizer)
    rerankers.save(FIXTURES / name, network, tokenizer)
    write_expected(name, network, tokenizer, TEXTS)


def write_decoder(name: str) -> None:
    """The head reads the last token. A tokenizer of a decoder has no rule for two texts."""
    config = transformers.Qwen3Config(**embeddings.decoder_sizes(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=2,
    ) | labels(3))  # fmt: skip
    network = rerankers.new_network(name, transformers.Qwen3ForSequenceClassification, config)
    network.score.weight.data.mul_(2)
    tokenizer = vocabulary.byte_level()
    rerankers.save(FIXTURES / name, network, tokenizer)
    write_expected(name, network, tokenizer, TEXTS[:3])


@torch.inference_mode()
def write_expected(name: str, network, tokenizer, texts) -> None:
    weights = FIXTURES / name / "model.safetensors"
    is_multi = network.config.problem_type == "multi_label_classification"

    def case(text: list[str]) -> dict:
        encoding = tokenizer.encode(*text)
        logits = rerankers.logits(network, encoding)
        scores = torch.sigmoid(logits) if is_multi else torch.softmax(logits, dim=-1)
        values = {key: [oracle.rounded(value) for value in of.tolist()] for key, of in (("logits", logits), ("scores", scores))}
        return dict(text=text, tokens=encoding.ids) | values

    oracle.write_json(FIXTURES / f"{name}.json", {
        "model": name,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} {type(network).__name__}, float32",
        "labels": [network.config.id2label[label] for label in range(network.config.num_labels)],
        "texts": [case(text) for text in texts],
    })  # fmt: skip
    print(f"{name:20} {weights.stat().st_size / 1024:7.0f} KiB", flush=True)


if __name__ == "__main__":
    FIXTURES.mkdir(parents=True, exist_ok=True)
    known = encoders()
    for name in sys.argv[1:] or [*known, "qwen3"]:
        write_decoder(name) if name == "qwen3" else write_encoder(name, known[name])
