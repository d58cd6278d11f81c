"""Writes small vocabularies with the token ids of the libraries that trained them.

Writes tests/fixtures/tokenizer/: two GGUF files, each with the texts (.inp) and ids (.out) in llama.cpp's layout, the first
one's tokenizer.json, models of SentencePiece with the ids of the same texts, and a tekken.json with those of Mistral's library.
Needs: gguf, mistral-common, sentencepiece, tokenizers.

usage: python tests/generate/tokenizer_fixtures.py
"""

import base64
import contextlib
import io
import json
import tempfile
from pathlib import Path

import gguf
import sentencepiece
import tokenizers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent.parent / "fixtures" / "tokenizer"
SEPARATOR = "\n__ggml_vocab_test__\n"

CORPUS = [
    "A cue light tells each actor backstage when to move; the audience never sees it.",
    "The lights go down, the curtain goes up, and the first actor walks into the light.",
    "Tokens stream from the model one after another, and nobody waits for the whole answer.",
    "def cue(light):\n    if light.on:\n        return move()\n    return wait()\n",
    "In 1949 there were 12 lamps; in 2024 there are 4096, and 65536 cues.",
    "Das Licht geht aus, der Vorhang hebt sich, und alle schauen auf die Bühne.",
    "Свет гаснет, занавес поднимается, и актёр выходит на сцену.",
    "灯光熄灭，幕布升起，演员走上舞台。",
]

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\t",
    " \n \n",
    "Hello",
    " Hello",
    "Hello  world",
    "the light, the lights",
    "  def move():\n\n        return 'light'\n",
    "It's 3 o'clock; we've 33, 333, 3333 and 33333 tokens, don't we?",
    "Die Bühne fällt",
    "Свет и занавес",
    "灯光升起 and 光",
    "unseen: ∑ नमस्ते 🎭🎭",
    "!@#$%^&*()_+-=[]{}|",
    "trailing space ",
    "<|end|> is spelled out, <s> too",
]


def write_expected(path, encode):
    path.with_suffix(".gguf.inp").write_text("".join(text + SEPARATOR for text in TEXTS))
    path.with_suffix(".gguf.out").write_text("".join(" ".join(map(str, encode(text))) + "\n" for text in TEXTS))


def byte_level():
    """Trained byte-level BPE with separate digits, as in the pre-tokenizer "smollm"."""
    path = FOLDER / "byte-level.gguf"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)

    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    merges = models_merges(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token == "<|end|>" else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(vocab["<|end|>"])
    finish(writer)

    tokenizer.encode_special_tokens = True
    write_expected(path, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def models_merges(tokenizer):
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def sentence_piece():
    """Trained SentencePiece BPE with byte fallback and an added space before the text."""
    path = FOLDER / "sentence-piece.gguf"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=440,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())

    def token_type(token):
        if processor.is_unknown(token):
            return gguf.TokenType.UNKNOWN
        if processor.is_control(token):
            return gguf.TokenType.CONTROL
        return gguf.TokenType.BYTE if processor.is_byte(token) else gguf.TokenType.NORMAL

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([processor.id_to_piece(token) for token in ids])
    writer.add_token_scores([processor.get_score(token) for token in ids])
    writer.add_token_types([token_type(token) for token in ids])
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    finish(writer)
    write_expected(path, lambda text: processor.encode(text))


# Two characters that become others: a small table in place of the quarter of a megabyte of Unicode's normalization.
RULES = "FF21\t41\n2460\t31\n"

MODELS = {
    # As the models of Llama and Mistral.
    "bpe": dict(model_type="bpe", vocab_size=440, byte_fallback=True, normalization_rule_name="identity",
                remove_extra_whitespaces=False),
    "bpe-plain": dict(model_type="bpe", vocab_size=240, user_defined_symbols=["<tool>"], control_symbols=["<turn>"]),
    "unigram": dict(model_type="unigram", vocab_size=130, user_defined_symbols=["<tool>"]),
    "unigram-bytes": dict(model_type="unigram", vocab_size=380, byte_fallback=True, add_dummy_prefix=False,
                          remove_extra_whitespaces=False, bos_id=3, eos_id=1, unk_id=2, pad_id=0),
}  # fmt: skip
MODEL_TEXTS = TEXTS[:-1] + [
    "Ａ light ①", "  two   spaces  ", "a <tool> b<tool>", "∑∑ ∑ unseen ∑", "<0x41> is no byte", "actor▁actor", "▁", "\u00a0x\u3000y",
]


def models_of_sentencepiece():
    for name, options in MODELS.items():
        model = io.BytesIO()
        # A model names the file of its rules.
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("rules.tsv").write_text(RULES)
            usual = {} if "normalization_rule_name" in options else dict(normalization_rule_tsv="rules.tsv")
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(CORPUS), model_writer=model, character_coverage=0.98, num_threads=1,
                minloglevel=2, **usual, **options)  # fmt: skip
        path = FOLDER / f"{name}.model"
        path.write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        path.with_suffix(".model.inp").write_text("".join(text + SEPARATOR for text in MODEL_TEXTS))
        lines = (" ".join(map(str, processor.encode(text))) + "\n" for text in MODEL_TEXTS)
        path.with_suffix(".model.out").write_text("".join(lines))


# How Mistral's vocabularies divide texts into words.
WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AUDIO]", "[BEGIN_AUDIO]"]


def tekken():
    """The bytes and merges learnt from the corpus, of which the last are beyond the size of the vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])  # fmt: skip
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    byte_of = {character: byte for byte, character in characters_of_bytes().items()}
    spelled = ["".join(merge.split(" ")) for merge in models_merges(tokenizer)]
    ranks = [bytes([byte]) for byte in range(256)] + [bytes(byte_of[character] for character in token) for token in spelled]
    config = dict(pattern=WORDS, num_vocab_tokens=len(ranks), default_vocab_size=len(ranks) + 6, default_num_special_tokens=10,
                  version="v11")  # fmt: skip
    path = FOLDER / "tekken.json"
    path.write_text(json.dumps(dict(
        config=config,
        vocab=[dict(rank=rank, token_bytes=base64.b64encode(token).decode(), token_str=None) for rank, token in enumerate(ranks)],
        special_tokens=[dict(rank=rank, token_str=token, is_control=True) for rank, token in enumerate(SPECIAL)])) + "\n")  # fmt: skip
    of_mistral = Tekkenizer.from_file(path)
    path.with_suffix(".json.inp").write_text("".join(text + SEPARATOR for text in TEXTS))
    lines = (" ".join(map(str, of_mistral.encode(text, bos=False, eos=False))) + "\n" for text in TEXTS)
    path.with_suffix(".json.out").write_text("".join(lines))


def characters_of_bytes():
    """The character of each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + index) for index, byte in enumerate(shifted)}


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    byte_level()
    sentence_piece()
    models_of_sentencepiece()
    tekken()
