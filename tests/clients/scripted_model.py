"""Writes a GGUF model that says given texts, so that programs can be tried with a model whose answers are known.

Each token of a text has one successor. The first token follows the line break after "<|im_start|>assistant"; with several
texts each is equally likely at temperature 1. Vocabulary and chat template are those of a Qwen 2.5 GGUF file. A text must
have a segmentation into tokens that occur nowhere else in the texts: vary the spaces of JSON.

usage: scripted_model.py QWEN.gguf OUT.gguf TEXT...          needs: pip install gguf numpy
"""

import re
import sys

import gguf
import numpy as np

WIDTH, HEADS, FEED_FORWARD = 512, 8, 256
LONGEST_TOKEN = 12


def byte_letters():
    """The letter that stands for each byte in the vocabulary (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


LETTERS = byte_letters()


def segment(text, numbers, used):
    """Tokens for a text, none of them in `used` and none twice; long ones first. None if there are none."""
    if not text:
        return []
    for length in range(min(LONGEST_TOKEN, len(text)), 0, -1):
        token = numbers.get(text[:length])
        if token is None or token in used:
            continue
        rest = segment(text[length:], numbers, used | {token})
        if rest is not None:
            return [token, *rest]
    return None


def tokens_of(text, numbers, used):
    """The same for a text with special tokens such as <tool_call>."""
    tokens = []
    for part in filter(None, re.split(r"(</?tool_call>)", text)):
        if part in numbers:
            found = [numbers[part]]
        else:
            letters = "".join(LETTERS[byte] for byte in part.encode())
            found = segment(letters, numbers, used | set(tokens))
        if found is None:
            sys.exit(f"{part!r} has no segmentation into tokens that occur once; vary its spaces")
        tokens += found
    return tokens


def chains_of(texts, numbers):
    """The tokens of each text, from the line break before it to the end of the turn."""
    begin, end = numbers[LETTERS[10]], numbers["<|im_end|>"]
    used, chains = {begin, end}, []
    for text in texts:
        tokens = tokens_of(text, numbers, used)
        used |= set(tokens)
        chains.append([begin, *tokens, end])
    return chains


def weights_of(chains, vocabulary):
    """Embeddings and output rows: each token of a chain has a direction of its own, which its successor's row has too."""
    embedding = np.random.default_rng(1).standard_normal((vocabulary, WIDTH)).astype(np.float16) * np.float16(0.02)
    output = np.zeros((vocabulary, WIDTH), np.float16)
    direction = {token: i for i, token in enumerate(dict.fromkeys(token for chain in chains for token in chain[:-1]))}
    if len(direction) > WIDTH:
        sys.exit(f"the texts have {len(direction)} tokens, more than {WIDTH}")
    for token, i in direction.items():
        embedding[token] = 0
        embedding[token, i] = 1
    for chain in chains:
        for token, successor in zip(chain, chain[1:]):
            output[successor, direction[token]] = 1.5
    return embedding, output


def write(source, path, texts):
    """Writes the model to `path`."""
    fields = gguf.GGUFReader(source).fields
    value = lambda name: fields[f"tokenizer.{name}"].contents()
    vocabulary = value("ggml.tokens")
    numbers = {token: number for number, token in enumerate(vocabulary)}
    embedding, output = weights_of(chains_of(texts, numbers), len(vocabulary))

    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("scripted")
    writer.add_context_length(131072)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model(value("ggml.model"))
    writer.add_tokenizer_pre(value("ggml.pre"))
    writer.add_token_list(vocabulary)
    writer.add_token_types(value("ggml.token_type"))
    writer.add_token_merges(value("ggml.merges"))
    writer.add_bos_token_id(numbers["<|endoftext|>"])
    writer.add_eos_token_id(numbers["<|im_end|>"])
    writer.add_chat_template(value("chat_template"))
    head = WIDTH // HEADS
    shapes = {
        "attn_q.weight": (WIDTH, WIDTH), "attn_q.bias": (WIDTH,),
        "attn_k.weight": (head, WIDTH), "attn_k.bias": (head,),
        "attn_v.weight": (head, WIDTH), "attn_v.bias": (head,),
        "attn_output.weight": (WIDTH, WIDTH),
        "ffn_gate.weight": (FEED_FORWARD, WIDTH), "ffn_up.weight": (FEED_FORWARD, WIDTH),
        "ffn_down.weight": (WIDTH, FEED_FORWARD),
    }
    # Attention and feed-forward add nothing, so only the last token decides.
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}", np.zeros(shape, np.float32))
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], sys.argv[3:])
