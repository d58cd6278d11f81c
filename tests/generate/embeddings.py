"""Writes tiny random embedding models as GGUF files and directories, and the vectors that transformers computes with them.

    python tests/generate/embeddings.py [NAME ...]      (needs torch, transformers, gguf, sentencepiece, tokenizers)

Writes `tests/fixtures/embeddings/NAME.gguf`, `NAME.json`, and for some the directory `NAME`, as sentence-transformers saves it.
"""

import hashlib
import json
import shutil
import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

import gguf
import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from gguf import MODEL_ARCH_NAMES as NAMES
from gguf import PoolingType
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import encoder_experts
import oracle
import two_ways
import vocabulary

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "embeddings"
POOLINGS = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS, "lasttoken": PoolingType.LAST}
TEXTS = (
    "The harbour was quiet before the storm.",
    "Counting is EASY;  a café, naïve façade, 东京 and x² are harder!",
    "rope",
    " ".join(vocabulary.SAMPLE.split()[:70]),
)


@dataclass(frozen=True)
class Model:
    """An embedding model: classes and sizes as transformers names them, and how a text becomes a vector."""

    architecture: ARCH
    model: type
    config: object
    tokenizer: Callable[[], Tokenizer]
    write_vocabulary: Callable[[gguf.GGUFWriter, Tokenizer], None]
    pooling: str
    # Ends of transformers' names and those that the converter's table has instead.
    renamed: dict[str, str] = field(default_factory=dict)
    # Whether the file has one tensor for queries, keys and values.
    fuses_qkv: bool = False
    # Changes of values on the way into the file.
    into_file: Callable[[str, np.ndarray], np.ndarray] = lambda name, values: values
    write_keys: Callable[[gguf.GGUFWriter, object], None] = lambda writer, config: None
    # [outputs] of linear projections after pooling.
    projections: tuple[int, ...] = ()
    has_directory: bool = True
    # The tensors and the configuration of its directory, where transformers has no class that saves them so.
    published: Callable[[torch.nn.Module], tuple[dict, dict]] | None = None


def word_piece(size: int = vocabulary.SIZE) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([vocabulary.SAMPLE], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, special.index(token)) for token in ("[CLS]", "[SEP]")]
    )
    return tokenizer


def ordered(tokenizer: Tokenizer) -> list[str]:
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.get)


def write_word_piece(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The converter's spelling: `▁` before the tokens that begin a word instead of `##` before the others."""
    tokens = ordered(tokenizer)

    def spelled(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else "▁" + token

    kinds = {"[PAD]": gguf.TokenType.CONTROL, "[UNK]": gguf.TokenType.UNKNOWN, "[CLS]": gguf.TokenType.CONTROL,
             "[SEP]": gguf.TokenType.CONTROL, "[MASK]": gguf.TokenType.CONTROL}  # fmt: skip
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([spelled(token) for token in tokens])
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_type_count(2)
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(2)
    writer.add_mask_token_id(4)


def last_token() -> Tokenizer:
    """Byte-level, with the token for the end of a text after each text."""
    tokenizer = vocabulary.byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer


def write_last_token(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    written = RecordingWriter(writer)
    vocabulary.write_byte_level(written)
    writer.add_eos_token_id(0)
    writer.add_add_eos_token(True)


ENCODER_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def between_tokens(size: int = vocabulary.SIZE) -> Tokenizer:
    """Byte-level, with texts between `[CLS]` and `[SEP]` and one `[SEP]` between two texts, as ModernBERT has them."""
    tokenizer = vocabulary.byte_level(ENCODER_SPECIAL, size)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, ENCODER_SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def write_between_tokens(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The converter's keys, which state a second separator that the models were trained without."""
    tokens = ordered(tokenizer)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("modern-bert")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in ENCODER_SPECIAL else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(True)


class RecordingWriter:
    """Passes on all keys but those that are written differently, and the chat template."""

    def __init__(self, writer: gguf.GGUFWriter):
        self.writer = writer

    def __getattr__(self, name: str):
        if name in ("add_eos_token_id", "add_chat_template"):
            return lambda *values: None
        return getattr(self.writer, name)


def sentence_piece() -> Tokenizer:
    """Gemma's rules: pieces of the trained model between the tokens for the start and the end of a text."""
    return vocabulary_of_sentencepiece()


def vocabulary_of_sentencepiece() -> Tokenizer:
    recorded = Recorded()
    vocabulary.write_sentencepiece(recorded)
    tokens, scores = recorded.values["add_token_list"], recorded.values["add_token_scores"]
    ids = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token in sorted(tokens, key=lambda token: -scores[ids[token]]):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids and recorded.values["add_token_types"][ids[token]] == gguf.TokenType.NORMAL:
                merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens(["<pad>", "</s>", "<s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    return tokenizer


class Recorded:
    """Takes what a writer would write."""

    def __init__(self):
        self.values = {}

    def __getattr__(self, name: str):
        return lambda value: self.values.__setitem__(name, value)


def write_sentence_piece(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    passing = PassingWriter(writer)
    vocabulary.write_sentencepiece(passing)
    writer.add_add_eos_token(True)


class PassingWriter(RecordingWriter):
    """Passes on all keys but whether texts end with a token, and the chat template."""

    def __getattr__(self, name: str):
        if name in ("add_add_eos_token", "add_chat_template"):
            return lambda *values: None
        return getattr(self.writer, name)


def encoder_sizes(**changes) -> dict:
    usual = dict(
        vocab_size=vocabulary.SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128,
        # Large, so a wrong epsilon is detected.
        layer_norm_eps=1e-3,
    )  # fmt: skip
    return usual | changes


def decoder_sizes(**changes) -> dict:
    usual = dict(
        vocab_size=vocabulary.SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=256, rms_norm_eps=1e-3,
    )  # fmt: skip
    return usual | changes


def gemma_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window(GEMMA_WINDOW)
    writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])


GEMMA_WINDOW = 20


def modern_bert(**changes) -> transformers.ModernBertConfig:
    """Windows shorter than the texts, and bases so small that a wrong one is detected."""
    bases = {"full_attention": 900.0, "sliding_attention": 60.0}
    sizes = encoder_sizes(
        num_hidden_layers=5, local_attention=12, global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=2,
        cls_token_id=2, eos_token_id=3, sep_token_id=3,
        rope_parameters={kind: dict(rope_type="default", rope_theta=base) for kind, base in bases.items()},
    )  # fmt: skip
    sizes["norm_eps"] = sizes.pop("layer_norm_eps")
    return transformers.ModernBertConfig(**(sizes | changes))


def modern_bert_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window(config.local_attention)
    writer.add_sliding_window_pattern(3)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def in_pairs(name: str, values: np.ndarray, config) -> np.ndarray:
    """Rows of queries and keys so that neighbours are rotated pairs."""
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    for end, count in heads.items():
        if name.endswith(end):
            return values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return values


def llama_bidirec(network: torch.nn.Module) -> tuple[dict, dict]:
    """The directory of a class that transformers lacks."""
    config = network.config.to_dict() | dict(model_type="llama_bidirec", architectures=["LlamaBidirectionalModel"])
    return {name: values.contiguous() for name, values in network.state_dict().items()}, config


def gemma_into_file(name: str, values: np.ndarray) -> np.ndarray:
    return values + 1 if name.endswith("norm.weight") else values


def all_models() -> dict[str, Model]:
    bert = transformers.BertConfig(**encoder_sizes(type_vocab_size=2))
    gemma = transformers.Gemma3TextConfig(**decoder_sizes(
        num_hidden_layers=6, sliding_window=GEMMA_WINDOW, use_bidirectional_attention=True, query_pre_attn_scalar=16,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    ))  # fmt: skip
    qwen2 = transformers.Qwen2Config(**decoder_sizes(num_hidden_layers=2, is_causal=False, tie_word_embeddings=True))
    qwen3 = transformers.Qwen3Config(**decoder_sizes(tie_word_embeddings=True))
    found = {
        "bert-mean": Model(ARCH.BERT, transformers.BertModel, bert, word_piece, write_word_piece, "mean"),
        "bert-cls": Model(ARCH.BERT, transformers.BertModel, bert, word_piece, write_word_piece, "cls", has_directory=False),
        "qwen3": Model(ARCH.QWEN3, transformers.Qwen3Model, qwen3, last_token, write_last_token, "lasttoken",
                       write_keys=lambda writer, config: writer.add_rope_freq_base(rope_theta(config))),
        "qwen2-both-ways": Model(ARCH.QWEN2, two_ways.Qwen2Model, qwen2, last_token, write_last_token, "lasttoken",
                                 write_keys=lambda writer, config: writer.add_rope_freq_base(rope_theta(config))),
        "gemma-embedding": Model(
            ARCH.GEMMA_EMBEDDING, transformers.Gemma3TextModel, gemma, sentence_piece, write_sentence_piece, "mean",
            into_file=gemma_into_file, write_keys=gemma_keys, projections=(80, 24),
        ),
    }  # fmt: skip
    found["modern-bert"] = Model(
        ARCH.MODERN_BERT, transformers.ModernBertModel, modern_bert(), between_tokens, write_between_tokens, "cls",
        write_keys=modern_bert_keys,
    )  # fmt: skip
    found["modern-bert-biases"] = replace(
        found["modern-bert"], pooling="mean",
        config=modern_bert(attention_bias=True, mlp_bias=True, norm_bias=True),
    )  # fmt: skip
    llama = transformers.LlamaConfig(**decoder_sizes(num_hidden_layers=2, tie_word_embeddings=True))
    found["llama-embed"] = Model(
        ARCH.LLAMA_EMBED, two_ways.LlamaModel, llama, last_token, write_last_token, "mean",
        into_file=lambda name, values: in_pairs(name, values, llama),
        write_keys=lambda writer, config: writer.add_rope_freq_base(rope_theta(config)), published=llama_bidirec,
    )  # fmt: skip
    found["eurobert"] = Model(
        ARCH.EUROBERT, transformers.EuroBertModel, transformers.EuroBertConfig(**decoder_sizes(
            num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=0, mask_token_id=1)), last_token,
        write_last_token, "mean", write_keys=lambda writer, config: writer.add_rope_freq_base(rope_theta(config)),
    )  # fmt: skip
    after = {"post_attention_layernorm": "attention.output.LayerNorm", "post_mlp_layernorm": "output.LayerNorm"}
    found["jina-bert-v3"] = Model(
        ARCH.JINA_BERT_V3, transformers.JinaEmbeddingsV3Model,
        transformers.JinaEmbeddingsV3Config(**encoder_sizes(type_vocab_size=1)), word_piece, write_word_piece, "mean",
        renamed={f"layers.{layer}.{name}": f"encoder.layer.{layer}.{other}" for layer in range(2) for name, other in after.items()}
        | {"layers.": "model.layers."},
        fuses_qkv=True, write_keys=lambda writer, config: writer.add_rope_freq_base(rope_theta(config)),
    )  # fmt: skip
    if hasattr(transformers, "NomicBertModel"):
        nomic = transformers.NomicBertConfig(**encoder_sizes(type_vocab_size=2))
        norms = {"post_attention_layernorm": "attention.output.LayerNorm", "post_mlp_layernorm": "output.LayerNorm"}
        found["nomic-bert"] = Model(
            ARCH.NOMIC_BERT, transformers.NomicBertModel, nomic, word_piece, write_word_piece, "mean",
            renamed={f"layers.{layer}.{name}": f"encoder.layer.{layer}.{other}" for layer in range(2)
                     for name, other in norms.items()}
            | {"layers.": "model.layers."},
            fuses_qkv=True,
        )  # fmt: skip
        found["nomic-bert-moe"] = replace(
            found["nomic-bert"], architecture=ARCH.NOMIC_BERT_MOE, model=encoder_experts.NomicBertModel,
            write_keys=encoder_experts.write_keys, published=encoder_experts.published,
        )  # fmt: skip
    return found


def norm_eps(config) -> float:
    return config.norm_eps if hasattr(config, "norm_eps") else config.layer_norm_eps


def rope_theta(config) -> float:
    return config.rope_parameters["rope_theta"]


def write(name: str, model: Model) -> None:
    torch.manual_seed(zlib.crc32(name.encode()))
    network = model.model(model.config).to(torch.float32).eval()
    randomise(network)
    projections = [torch.randn(outputs, inputs) / inputs**0.5 for inputs, outputs in
                   zip((model.config.hidden_size,) + model.projections, model.projections)]  # fmt: skip
    tokenizer = model.tokenizer()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    path = FIXTURES / f"{name}.gguf"
    write_gguf(path, name, model, network, projections, tokenizer)
    cases = [case(model, network, projections, tokenizer, text) for text in TEXTS]
    oracle.write_json(path.with_suffix(".json"), {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} {model.model.__name__}, float32",
        "pooling": model.pooling,
        "texts": cases,
    })  # fmt: skip
    if model.has_directory:
        write_directory(FIXTURES / name, model, network, projections, tokenizer)
    print(f"{name:20} {path.stat().st_size / 1024:7.0f} KiB", flush=True)


@torch.no_grad()
def randomise(network: torch.nn.Module) -> None:
    """Values that keep activations near 1, and biases and norms that matter."""
    for key, values in network.named_parameters():
        if "embed" in key.lower() and values.dim() == 2:
            values.normal_(0, 0.7)
        elif values.dim() == 2:
            values.normal_(0, 1.5 / values.shape[1] ** 0.5)
        elif key.endswith("bias"):
            values.normal_(0, 0.2)
        else:
            values.add_(torch.randn_like(values) * 0.2)


@torch.inference_mode()
def case(model: Model, network, projections, tokenizer: Tokenizer, text: str) -> dict:
    tokens = tokenizer.encode(text).ids
    hidden = network(input_ids=torch.tensor([tokens])).last_hidden_state[0].double()
    pooled = {"mean": hidden.mean(dim=0), "cls": hidden[0], "lasttoken": hidden[-1]}[model.pooling]
    for matrix in projections:
        pooled = matrix.double() @ pooled
    vector = pooled / pooled.norm()
    return {"text": text, "tokens": tokens, "vector": [oracle.rounded(value) for value in vector.tolist()]}


def write_gguf(path: Path, name: str, model: Model, network, projections, tokenizer: Tokenizer) -> None:
    config, writer = model.config, gguf.GGUFWriter(path, NAMES[model.architecture])
    writer.add_type("model")
    writer.add_name(f"Tiny random {name}")
    writer.add_license("mit")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if hasattr(config, "num_key_value_heads"):
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(norm_eps(config))
    if model.architecture != ARCH.QWEN3:
        writer.add_causal_attention(False)
    if model.architecture in (ARCH.NOMIC_BERT, ARCH.NOMIC_BERT_MOE):
        writer.add_rope_freq_base(rope_theta(config))
    writer.add_pooling_type(POOLINGS[model.pooling])
    model.write_keys(writer, config)
    model.write_vocabulary(writer, tokenizer)
    # The table of an architecture lacks projections that its files fuse.
    tables = [gguf.get_tensor_name_map(of, config.num_hidden_layers) for of in (model.architecture, ARCH.LLAMA)]
    tensors = {}
    for key, values in network.state_dict().items():
        if key.startswith("pooler.") or key.endswith("position_ids"):
            continue
        for name, other in model.renamed.items():
            key = other + key.removeprefix(name) if key.startswith(name) else key
        found = (table.get_name(prefix + key, try_suffixes=(".weight", ".bias"))
                 for table in tables for prefix in ("", "model.", "bert."))  # fmt: skip
        mapped = next((name for name in found if name), None)
        assert mapped, key
        tensors[mapped] = model.into_file(mapped, values.numpy().astype(np.float32))
    if model.fuses_qkv:
        for layer in range(config.num_hidden_layers):
            for kind in ("weight", "bias"):
                if f"blk.{layer}.attn_q.{kind}" in tensors:
                    parts = [tensors.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
                    tensors[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, values)
    for number, matrix in enumerate(projections, start=2):
        writer.add_tensor(f"dense_{number}.weight", matrix.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_directory(folder: Path, model: Model, network, projections, tokenizer: Tokenizer) -> None:
    """The files that sentence-transformers writes and this project reads."""
    shutil.rmtree(folder, ignore_errors=True)
    if model.published:
        folder.mkdir()
        tensors, config = model.published(network)
        save_file(tensors, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    else:
        network.save_pretrained(folder)
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(projections) + ["Normalize"]
    modules = [
        dict(idx=index, name=str(index), path=f"{index}_{kind}" if index else "",
             type=f"sentence_transformers.models.{kind}")
        for index, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    pooling = {f"pooling_mode_{flag}": mode == model.pooling for mode, flag in flags.items()}
    save_module(folder / "1_Pooling", dict(word_embedding_dimension=model.config.hidden_size, **pooling))
    for index, matrix in enumerate(projections, start=2):
        outputs, inputs = matrix.shape
        sizes = dict(in_features=inputs, out_features=outputs, bias=False)
        save_module(folder / f"{index}_Dense", sizes | dict(activation_function="torch.nn.modules.linear.Identity"))
        save_file({"linear.weight": matrix}, str(folder / f"{index}_Dense" / "model.safetensors"))


def save_module(folder: Path, config: dict) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    known = all_models()
    for name in sys.argv[1:] or known:
        write(name, known[name])
