"""Vocabularies of 512 tokens for the tiny checkpoints, written as GGUF tokenizer metadata.

Two kinds, one for each tokenizer family of the engine: byte-level BPE ("gpt2") and SentencePiece BPE with byte fallback
("llama"). Both are trained on `SAMPLE`, so ordinary English has tokens of several letters.
"""

import io
import json

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 512

SAMPLE = """\
The harbour was quiet before the storm, and the fishermen tied their boats twice. Nobody spoke of the light that had
been seen over the water the evening before, though everyone had seen it. "It will rain by morning," the oldest of them
said, and the others nodded, because he had been right about the rain for forty years. When the wind came it came from
the north, hard and cold, and the windows of the houses along the shore were shaking until the small hours. Afterwards
the children walked along the beach and collected what the sea had left there: rope, green glass, a wooden door with
its handle still bright, and a great many shells. The teacher asked them to write down what they had found and what
they thought had happened to it on the way. One girl wrote that the door had belonged to a house at the bottom of the
sea, and that somebody down there was now standing in a draught. A good answer explains what is known, says what is not
known, and keeps the two apart. Counting from one to ten is easy; counting what is missing is harder than that. The
answer to the question is in the last paragraph of the letter, which was never sent. Where there is a will there is a
way, they say, and where there is water there is weather. This is the end of the sample and the start of the test.
"""

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TURN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(special: list[str] = SPECIAL, size: int = SIZE) -> Tokenizer:
    """Special tokens, by default three, the 256 bytes, and merges learnt from the sample."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    return tokenizer


def write_byte_level(
    writer: gguf.GGUFWriter, special: list[str] = SPECIAL, size: int = SIZE, template: str = CHATML_TEMPLATE
) -> None:
    tokenizer = byte_level(special, size)
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    assert len(tokens) == size, len(tokens)
    merges = [" ".join(pair) for pair in _merges(tokenizer)]

    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def _merges(tokenizer: Tokenizer) -> list[list[str]]:
    return json.loads(tokenizer.to_str())["model"]["merges"]


def write_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """Gemma's layout of the first ids (pad, eos, bos, unk), the 256 bytes, and pieces learnt from the sample."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE.replace("\n", " ").split(". ")),
        model_writer=trained,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        character_coverage=1.0,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(trained.getvalue())
    assert len(model.pieces) == SIZE, len(model.pieces)
    piece_type = sentencepiece_model_pb2.ModelProto.SentencePiece
    kinds = {
        piece_type.NORMAL: gguf.TokenType.NORMAL,
        piece_type.UNKNOWN: gguf.TokenType.UNKNOWN,
        piece_type.CONTROL: gguf.TokenType.CONTROL,
        piece_type.BYTE: gguf.TokenType.BYTE,
    }
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece.piece for piece in model.pieces])
    writer.add_token_scores([piece.score for piece in model.pieces])
    writer.add_token_types([kinds[piece.type] for piece in model.pieces])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TURN_TEMPLATE)
