"""Writes tiny random rerankers as GGUF files and directories, and the scores that transformers computes with them.

    python tests/generate/rerankers.py [NAME ...]      (needs torch, transformers, gguf, sentencepiece, tokenizers)

Writes `tests/fixtures/rerankers/NAME.gguf`, `NAME.json`, and for encoders the directory `NAME`, as transformers saves it.
Of `qwen3-answers` there are two directories and no GGUF file.
"""

import hashlib
import json
import shutil
import sys
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable

import gguf
import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from gguf import MODEL_ARCH_NAMES as NAMES
from gguf import PoolingType
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import embeddings
import oracle
import vocabulary

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "rerankers"
SIZE = 200
# A byte-level vocabulary has 256 bytes.
MODERN_SIZE = 300
POSITIONS = 64
PAIRS = (
    ("Who tied the boats?", "The fishermen tied their boats twice."),
    ("Who tied the boats?", "green glass"),
    ("rain", "It will rain by morning, the oldest of them said."),
    ("What did the children find on the beach?", "rope, green glass, a wooden door with its handle still bright"),
    ("weather", ""),
)
# That of Qwen3-Reranker, shorter.
TEMPLATE = (
    "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def word_piece() -> Tokenizer:
    tokenizer = embeddings.word_piece(SIZE)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram() -> Tokenizer:
    """XLM-R's rules: both texts between `<s>` and `</s>`, and a second `</s>` between them."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([vocabulary.SAMPLE.replace("\n", " ")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def write_unigram(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    scored = json.loads(tokenizer.to_str())["model"]["vocab"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN]
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token for token, _ in scored])
    writer.add_token_scores([score for _, score in scored])
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(scored) - len(kinds)))
    writer.add_add_space_prefix(True)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_sep_token_id(2)
    writer.add_pad_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


@dataclass(frozen=True)
class Encoder:
    """A cross-encoder, and where its file differs from its tensors."""

    model: type
    config: object
    tokenizer: Callable[[], Tokenizer]
    write_vocabulary: Callable[[gguf.GGUFWriter, Tokenizer], None]
    # The tensors of the head.
    head: dict[str, str]
    # Rows of the table of positions that belong to no position.
    unused_positions: int = 0
    architecture: ARCH = ARCH.BERT
    write_keys: Callable[[gguf.GGUFWriter, object], None] = lambda writer, config: None


def encoder_sizes(**changes) -> dict:
    return embeddings.encoder_sizes(vocab_size=SIZE, hidden_size=16, intermediate_size=24, num_labels=1) | changes


def encoders() -> dict[str, Encoder]:
    bert = transformers.BertConfig(**encoder_sizes(max_position_embeddings=POSITIONS, type_vocab_size=2))
    xlmr = transformers.XLMRobertaConfig(
        **encoder_sizes(max_position_embeddings=POSITIONS + 2, type_vocab_size=1, pad_token_id=1)
    )
    return {
        "bert": Encoder(
            transformers.BertForSequenceClassification, bert, word_piece, embeddings.write_word_piece,
            {"bert.pooler.dense": "cls", "classifier": "cls.output"},
        ),
        "xlm-roberta": Encoder(
            transformers.XLMRobertaForSequenceClassification, xlmr, unigram, write_unigram,
            {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}, unused_positions=2,
        ),
        "modern-bert": modern_bert(pooling="mean", num_labels=1, norm_bias=True, classifier_bias=True),
    }  # fmt: skip


def modern_bert(pooling: str, **changes) -> Encoder:
    config = embeddings.modern_bert(
        vocab_size=MODERN_SIZE, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=4,
        max_position_embeddings=2 * POSITIONS, classifier_pooling=pooling, **changes,
    )  # fmt: skip
    return Encoder(
        transformers.ModernBertForSequenceClassification, config, lambda: embeddings.between_tokens(MODERN_SIZE),
        embeddings.write_between_tokens,
        {"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
        architecture=ARCH.MODERN_BERT, write_keys=embeddings.modern_bert_keys,
    )  # fmt: skip


def new_network(name: str, model: type, config) -> torch.nn.Module:
    torch.manual_seed(zlib.crc32(name.encode()))
    network = model(config).to(torch.float32).eval()
    embeddings.randomise(network)
    for key, values in network.named_parameters():
        if key.endswith(("classifier.weight", "out_proj.weight")) and not hasattr(network, "head"):
            # So that scores differ. A norm before the logits does the same.
            values.data.mul_(6)
    return network


def write_encoder(name: str, encoder: Encoder) -> None:
    network, tokenizer = new_network(name, encoder.model, encoder.config), encoder.tokenizer()
    assert tokenizer.get_vocab_size() <= encoder.config.vocab_size
    path = FIXTURES / f"{name}.gguf"
    write_encoder_file(path, encoder, network, tokenizer)
    cases = [encoder_case(network, tokenizer, *pair) for pair in PAIRS]
    write_expected(path, encoder.model, cases)
    save(FIXTURES / name, network, tokenizer)


def save(folder: Path, network, tokenizer: Tokenizer) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    for file in folder.iterdir():
        file.chmod(0o644)


def write_encoder_file(path: Path, encoder: Encoder, network, tokenizer: Tokenizer) -> None:
    config, writer = encoder.config, gguf.GGUFWriter(path, NAMES[encoder.architecture])
    writer.add_name(f"Tiny random {path.stem} {path.parent.name.removesuffix('s')}")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - encoder.unused_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(embeddings.norm_eps(config))
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.RANK)
    encoder.write_keys(writer, config)
    if config.num_labels > 1:
        writer.add_classifier_output_labels([config.id2label[label] for label in range(config.num_labels)])
    # These keys are Cuelight's own. llama.cpp's converter leaves them out: ModernBERT has the mean, classes exclude each other.
    if getattr(config, "classifier_pooling", "mean") == "cls":
        writer.add_uint32(f"{NAMES[encoder.architecture]}.classifier.pooling_type", PoolingType.CLS)
    if config.problem_type:
        writer.add_string(f"{NAMES[encoder.architecture]}.classifier.problem_type", config.problem_type)
    encoder.write_vocabulary(writer, tokenizer)
    table = gguf.get_tensor_name_map(encoder.architecture, config.num_hidden_layers)
    for key, values in network.state_dict().items():
        stem, kind = key.rsplit(".", 1)
        short = stem.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
        mapped = encoder.head.get(stem) or table.get_name(short)
        assert mapped, key
        values = values.numpy().astype(np.float32)
        if mapped == "position_embd":
            values = values[encoder.unused_positions :]
        writer.add_tensor(f"{mapped}.{kind}", values)
    finish(writer)


@torch.inference_mode()
def encoder_case(network, tokenizer: Tokenizer, query: str, document: str) -> dict:
    pair = tokenizer.encode(query, document)
    return case(query, document, pair.ids, logits(network, pair)[0])


def logits(network, encoding):
    told_apart = getattr(network.config, "type_vocab_size", 1) > 1
    types = dict(token_type_ids=torch.tensor([encoding.type_ids])) if told_apart else {}
    return network(input_ids=torch.tensor([encoding.ids]), **types).logits[0].double()


def case(query: str, document: str, tokens: list[int], logit) -> dict:
    logit, score = oracle.rounded(logit.item()), oracle.rounded(torch.sigmoid(logit).item())
    return {"query": query, "document": document, "tokens": tokens, "logit": logit, "score": score}


def write_qwen3(name: str) -> None:
    """The logits of two tokens after the last one: here any two."""
    config = transformers.Qwen3Config(**embeddings.decoder_sizes(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True,
    ))  # fmt: skip
    network, tokenizer = new_network(name, transformers.Qwen3ForCausalLM, config), vocabulary.byte_level()
    answers = [tokenizer.token_to_id(token) for token in ("y", "n")]
    path = FIXTURES / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, NAMES[ARCH.QWEN3])
    writer.add_name("Tiny random Qwen3 reranker")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(embeddings.rope_theta(config))
    writer.add_pooling_type(PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    vocabulary.write_byte_level(embeddings.RecordingWriter(writer))
    writer.add_eos_token_id(2)
    writer.add_chat_template([{"name": "rerank", "template": TEMPLATE}])
    table = gguf.get_tensor_name_map(ARCH.QWEN3, config.num_hidden_layers)
    for key, values in network.state_dict().items():
        if key == "lm_head.weight":
            writer.add_tensor("cls.output.weight", values.numpy()[answers])
        else:
            writer.add_tensor(table.get_name(key, try_suffixes=(".weight",)), values.numpy())
    finish(writer)
    write_expected(path, type(network), [qwen3_case(network, tokenizer, answers, *pair) for pair in PAIRS])


@torch.inference_mode()
def qwen3_case(
    network, tokenizer: Tokenizer, answers: list[int], query: str, document: str, template: str = TEMPLATE
) -> dict:
    tokens = tokenizer.encode(template.format(query=query, document=document)).ids
    yes, no = network(input_ids=torch.tensor([tokens])).logits[0, -1].double()[answers]
    return case(query, document, tokens, yes - no)


# That of Qwen3-Reranker, which directories do not state in this form.
FULL_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def answering_vocabulary() -> Tokenizer:
    """One whose tokens include the answers."""
    tokenizer = vocabulary.byte_level()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary.SIZE, special_tokens=vocabulary.SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator([vocabulary.SAMPLE, "yes\nno\n" * 100], trainer)
    return tokenizer


def write_answers(name: str) -> None:
    """A directory of a model of texts that a module of sentence-transformers makes a reranker, as Qwen3-Reranker is published,
    and one with the difference of both answers as its head, as it was converted."""
    config = transformers.Qwen3Config(**embeddings.decoder_sizes(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True, max_position_embeddings=512, pad_token_id=0, eos_token_id=2,
    ))  # fmt: skip
    network, tokenizer = new_network(name, transformers.Qwen3ForCausalLM, config), answering_vocabulary()
    answers = [tokenizer.token_to_id(token) for token in ("yes", "no")]
    assert None not in answers
    folder = FIXTURES / name
    save(folder, network, tokenizer)
    types = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
    modules = [dict(idx=index, name=str(index), path=path, type=f"sentence_transformers.{kind}")
               for index, (kind, path) in enumerate(zip(types, ("", "1_LogitScore")))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    embeddings.save_module(folder / "1_LogitScore", dict(true_token_id=answers[0], false_token_id=answers[1]))
    cases = [qwen3_case(network, tokenizer, answers, *pair, template=FULL_TEMPLATE) for pair in PAIRS]
    write_expected(folder, type(network), cases)

    converted = transformers.Qwen3ForSequenceClassification(transformers.Qwen3Config(**config.to_dict() | dict(num_labels=1)))
    converted.model.load_state_dict(network.model.state_dict())
    rows = network.lm_head.weight.detach()[answers]
    converted.score.weight.data = (rows[0] - rows[1])[None]
    converted = converted.to(torch.float32).eval()
    for case in cases:
        logit = converted(input_ids=torch.tensor([case["tokens"]])).logits[0, 0].item()
        assert abs(logit - case["logit"]) < 1e-4, (logit, case)
    save(FIXTURES / f"{name}-converted", converted, tokenizer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_expected(path: Path, model: type, cases: list[dict]) -> None:
    weights = path / "model.safetensors" if path.is_dir() else path
    oracle.write_json(path.with_suffix(".json"), {
        "model": path.name,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} {model.__name__}, float32",
        "pairs": cases,
    })  # fmt: skip
    print(f"{path.stem:20} {weights.stat().st_size / 1024:7.0f} KiB", flush=True)


if __name__ == "__main__":
    FIXTURES.mkdir(parents=True, exist_ok=True)
    known = {name: partial(write_encoder, encoder=encoder) for name, encoder in encoders().items()}
    known |= {"qwen3": write_qwen3, "qwen3-answers": write_answers}
    for name in sys.argv[1:] or known:
        known[name](name)
