"""Writes the Hugging Face directory of a Whisper whose files are those of CTranslate2, in half precision.

    python tests/whisper_directory.py SOURCE DIRECTORY

SOURCE has `model.bin`, `config.json` and `tokenizer.json`. Needs only the standard library. Projections that CTranslate2 joins are
divided; the keys of attention have no bias.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

HALF = 4  # The number of float16 among the types of values.
BYTES = 2


class Tensor:
    def __init__(self, shape: list[int], values: bytes):
        self.shape, self.values = shape, values

    def part(self, index: int, count: int) -> "Tensor":
        """One of `count` equal parts of the outermost axis."""
        size = len(self.values) // count
        return Tensor([self.shape[0] // count, *self.shape[1:]], self.values[index * size : (index + 1) * size])


def read(path: Path) -> dict[str, Tensor]:
    """The tensors by name. A file has a version, a name, a revision, tensors, and other names of some."""
    with path.open("rb") as file:
        number = lambda kind: struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]
        text = lambda: file.read(number("H")).rstrip(b"\0").decode()
        assert number("I") >= 4, "an older version has no types"
        text(), number("I")
        tensors = {}
        for _ in range(number("I")):
            name, shape = text(), [number("I") for _ in range(number("B"))]
            kind, size = number("B"), number("I")
            tensors[name] = Tensor(shape, file.read(size))
            assert kind == HALF or not shape, f"{name} is not in half precision"
    return tensors


def layers(tensors: dict[str, Tensor], stack: str) -> int:
    return len({name.split("/")[1] for name in tensors if name.startswith(f"{stack}/layer_") and "layer_norm" not in name.split("/")[1]})


def directory(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with their names in a directory."""
    named: dict[str, Tensor] = {}

    def linear(name: str, stored: str, index: int = 0, count: int = 1) -> None:
        named[f"{name}.weight"] = source[f"{stored}/weight"].part(index, count)
        if not name.endswith("k_proj"):
            named[f"{name}.bias"] = source[f"{stored}/bias"].part(index, count)

    def norm(name: str, stored: str) -> None:
        named[f"{name}.weight"], named[f"{name}.bias"] = source[f"{stored}/gamma"], source[f"{stored}/beta"]

    named["model.decoder.embed_tokens.weight"] = source["decoder/embeddings/weight"]
    for index in (1, 2):
        linear(f"model.encoder.conv{index}", f"encoder/conv{index}")
    for stack in ("encoder", "decoder"):
        named[f"model.{stack}.embed_positions.weight"] = source[f"{stack}/position_encodings/encodings"]
        norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        for layer in range(layers(source, stack)):
            name, stored = f"model.{stack}.layers.{layer}", f"{stack}/layer_{layer}"
            for index, projection in enumerate(("q_proj", "k_proj", "v_proj")):
                linear(f"{name}.self_attn.{projection}", f"{stored}/self_attention/linear_0", index, 3)
            linear(f"{name}.self_attn.out_proj", f"{stored}/self_attention/linear_1")
            norm(f"{name}.self_attn_layer_norm", f"{stored}/self_attention/layer_norm")
            if stack == "decoder":
                linear(f"{name}.encoder_attn.q_proj", f"{stored}/attention/linear_0")
                for index, projection in enumerate(("k_proj", "v_proj")):
                    linear(f"{name}.encoder_attn.{projection}", f"{stored}/attention/linear_1", index, 2)
                linear(f"{name}.encoder_attn.out_proj", f"{stored}/attention/linear_2")
                norm(f"{name}.encoder_attn_layer_norm", f"{stored}/attention/layer_norm")
            linear(f"{name}.fc1", f"{stored}/ffn/linear_0")
            linear(f"{name}.fc2", f"{stored}/ffn/linear_1")
            norm(f"{name}.final_layer_norm", f"{stored}/ffn/layer_norm")
    return named


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file: the length of the header, the header, the values."""
    header, start = {}, 0
    for name, tensor in tensors.items():
        end = start + len(tensor.values)
        header[name] = {"dtype": "F16", "shape": tensor.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.values)


def main(source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stored = read(source / "model.bin")
    tensors = directory(stored)
    vocabulary, width = tensors["model.decoder.embed_tokens.weight"].shape
    tokens = {token["content"]: token["id"] for token in json.loads((source / "tokenizer.json").read_text())["added_tokens"]}
    settings, end = json.loads((source / "config.json").read_text()), tokens["<|endoftext|>"]
    sizes = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in dict(layers=layers(stored, stack), attention_heads=width // 64, ffn_dim=4 * width).items()
    }
    config = dict(
        architectures=["WhisperForConditionalGeneration"], model_type="whisper", is_encoder_decoder=True, d_model=width,
        vocab_size=vocabulary, num_mel_bins=tensors["model.encoder.conv1.weight"].shape[1], max_source_positions=1500,
        max_target_positions=448, activation_function="gelu", eos_token_id=end, **sizes,
    )  # fmt: skip
    write(out / "model.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(config))
    generation = dict(eos_token_id=end, suppress_tokens=settings["suppress_ids"], alignment_heads=settings.get("alignment_heads"))
    (out / "generation_config.json").write_text(json.dumps(generation))
    shutil.copy(source / "tokenizer.json", out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
