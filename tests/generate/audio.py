"""Writes tiny random models that hear audio, and what transformers makes of some clips and computes with them.

    python tests/generate/audio.py LLAMA_CPP [NAME ...]      (needs torch, transformers, tokenizers, gguf)

LLAMA_CPP is a checkout of llama.cpp, whose converter writes the audio encoders. Writes `tests/fixtures/audio/NAME`:

- `text.gguf`: the language model; `mmproj.gguf`: the audio encoder and its projector
- `directory`: the whole model as published on the Hugging Face Hub; that of Ultravox has no language model
- `expected.json`: of some clips the text that stands for them, some frames of their spectrogram and their embedding rows; and
  the log-probabilities of a prompt with the first clip

Windows have 96 frames instead of 3000. Ultravox is no part of transformers: its encoder is that of Whisper there, and its
projector is written here by the layout of `ultravox_model.py` of fixie-ai/ultravox-v0_5-llama-3_2-1b.
"""

import hashlib
import json
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Format
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import families
import oracle
import vision
import vocabulary
from checkpoint import Checkpoint, rope, sizes

HOP = 160
ROWS = 48
FRAMES = 2 * ROWS
# Samples of each clip; the first is in the prompt. Less than a window, a whole one, more than one, and a few frames.
CLIPS = (11000, FRAMES * HOP, 20000, 500)
PROMPT = vision.PROMPT
CONTINUATION = 12
# The converter knows numbers of convolutions up to that of the last layer.
ENCODER = dict(encoder_layers=3, encoder_attention_heads=2, encoder_ffn_dim=32, d_model=16, max_source_positions=ROWS)
VOXTRAL = dict(num_hidden_layers=3, num_attention_heads=2, intermediate_size=4 * 16, hidden_size=16, max_source_positions=ROWS)
STACK = 8


class RmsNorm(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class UltravoxProjector(torch.nn.Module):
    def __init__(self, width: int, inner: int, text: int):
        super().__init__()
        self.ln_pre = RmsNorm(width * STACK)
        self.linear_1 = torch.nn.Linear(width * STACK, inner, bias=False)
        self.ln_mid = RmsNorm(inner // 2)
        self.linear_2 = torch.nn.Linear(inner // 2, text, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % STACK))
        value, gate = self.linear_1(self.ln_pre(padded.reshape(-1, STACK * rows.shape[1]))).chunk(2, dim=-1)
        return self.linear_2(self.ln_mid(torch.nn.functional.silu(gate) * value))


class Ultravox(torch.nn.Module):
    """Whisper's encoder without silence after the clip, the projector, and a language model."""

    def __init__(self, config: SimpleNamespace):
        super().__init__()
        self.config = config
        self.audio_tower = WhisperEncoder(config.audio)
        self.multi_modal_projector = UltravoxProjector(config.audio.d_model, 48, config.text.hidden_size)
        self.language_model = transformers.LlamaModel(config.text)
        self.lm_head = torch.nn.Linear(config.text.hidden_size, config.text.vocab_size, bias=False)

    def tie_weights(self) -> None:
        pass

    def rows(self, features: torch.Tensor) -> torch.Tensor:
        tower, gelu = self.audio_tower, torch.nn.functional.gelu
        rows = gelu(tower.conv2(gelu(tower.conv1(features[None])))).transpose(1, 2)
        rows = rows + tower.embed_positions.weight[: rows.shape[1]]
        for layer in tower.layers:
            found = layer(rows, attention_mask=None)
            rows = found[0] if isinstance(found, tuple) else found
        return self.multi_modal_projector(tower.layer_norm(rows)[0])

    def forward(self, input_ids: torch.Tensor, use_cache: bool, given: torch.Tensor, token: int) -> object:
        embedded = self.language_model.get_input_embeddings()(input_ids).masked_scatter((input_ids == token)[..., None], given)
        found = self.language_model(inputs_embeds=embedded, use_cache=use_cache)
        return SimpleNamespace(logits=self.lm_head(found.last_hidden_state))

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        state = {name: value.contiguous() for name, value in self.state_dict().items() if not name.startswith(("language_model", "lm_head"))}
        safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config = dict(architectures=["UltravoxModel"], model_type="ultravox", stack_factor=STACK, projector_act="swiglu",
                      projector_ln_mid=True, text_model_id="org/text", audio_model_id="org/audio",
                      audio_config=self.config.audio.to_dict(), text_config=self.config.text.to_dict())  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))


def qwen_rows(model: torch.nn.Module, features: torch.Tensor, heard: int) -> torch.Tensor:
    """[rows, width] of one window, of which `heard` frames are those of the clip."""
    of_tower, of_pool = model.model.audio_tower._get_feat_extract_output_lengths(torch.tensor([heard]))
    mask = torch.arange(ROWS)[None] < of_tower[:, None]
    mask = torch.where(mask[:, None, None], 0.0, torch.finfo(torch.float32).min).expand(1, 1, ROWS, ROWS)
    rows = model.model.audio_tower(features[None], attention_mask=mask).last_hidden_state
    return model.model.multi_modal_projector(rows)[0, : int(of_pool)]


@dataclass(frozen=True)
class Audio:
    """One model: transformers' classes and sizes, and how its processor writes clips."""

    text: Checkpoint
    model: type
    config: Callable[..., object]
    # What the names of the language model's tensors start with.
    text_prefix: str
    mels: int
    special: list[str]
    placeholder: str
    row_token: str
    around: tuple[str, str]
    # The rows of a window: of the model, its features and the frames of the clip in it.
    rows: Callable[[torch.nn.Module, torch.Tensor, int], torch.Tensor]
    # Whether silence follows up to whole windows.
    is_padded: bool = True
    rounded: bool = False
    part: str = "audio"
    # Whether the directory has the language model and its tokenizer too.
    is_whole: bool = True
    # Whether its processor is saved as one file, with the feature extractor in it.
    is_joined: bool = False


TEXT = vision.TEXT
MODELS = {
    "qwen2a": Audio(
        Checkpoint(families.QWEN2, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        transformers.Qwen2AudioForConditionalGeneration,
        lambda text, token: transformers.Qwen2AudioConfig(
            text_config=text.to_dict(), audio_config=ENCODER | dict(model_type="qwen2_audio_encoder", num_mel_bins=128),
            audio_token_index=token, tie_word_embeddings=False),
        "model.language_model.", 128,
        ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"],
        "<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>", ("<|audio_bos|>", "<|audio_eos|>"), qwen_rows,
    ),
    "voxtral": Audio(
        Checkpoint(families.LLAMA, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        transformers.VoxtralForConditionalGeneration,
        lambda text, token: transformers.VoxtralConfig(
            text_config=text.to_dict(), audio_config=VOXTRAL | dict(model_type="voxtral_encoder", num_mel_bins=128),
            audio_token_id=token, tie_word_embeddings=False),
        "model.language_model.", 128,
        ["[AUDIO]", "[BEGIN_AUDIO]"],
        "[BEGIN_AUDIO][AUDIO]", "[AUDIO]", ("[BEGIN_AUDIO]", ""),
        lambda model, features, heard: model.get_audio_features(features[None]).pooler_output,
        is_joined=True,
    ),
    "ultravox": Audio(
        Checkpoint(families.LLAMA, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        Ultravox,
        lambda text, token: SimpleNamespace(text=text, audio=transformers.WhisperConfig(
            **ENCODER | dict(num_mel_bins=80, decoder_layers=1, attn_implementation="eager"))),
        "language_model.", 80,
        ["<|reserved_special_token_0|>"],
        "<|audio|>", "<|reserved_special_token_0|>", ("", ""),
        lambda model, features, heard: model.rows(features),
        is_padded=False,
        is_whole=False,
    ),
}  # fmt: skip


def clip(samples: int) -> np.ndarray:
    """[samples] in 16 bits: the formula of `tests/audio_encoders.rs`."""
    index = np.arange(samples, dtype=np.int64)
    return ((index * index * 7 + index * 13) % 2001 - 1000) * (1 + index // 700 % 4) * 8


def spectrogram(audio: Audio, samples: int) -> torch.Tensor:
    """[mels, frames] of a clip and the silence after it."""
    multiple = FRAMES * HOP if audio.is_padded else HOP
    padded = np.zeros(-(-samples // multiple) * multiple, dtype=np.float32)
    padded[:samples] = clip(samples) / 32768
    extractor = transformers.WhisperFeatureExtractor(feature_size=audio.mels)
    found = extractor(padded, sampling_rate=16000, padding=False, truncation=False, return_tensors="pt")
    return found.input_features[0]


@torch.inference_mode()
def rows_of(audio: Audio, model: torch.nn.Module, samples: int) -> torch.Tensor:
    features, heard = spectrogram(audio, samples), -(-samples // HOP)
    windows = [features[:, start : start + FRAMES] for start in range(0, features.shape[1], FRAMES)]
    left = [min(heard - index * FRAMES, FRAMES) for index in range(len(windows))]
    return torch.cat([audio.rows(model, window, frames) for window, frames in zip(windows, left)])


class Heard:
    """A model with a clip in its prompt, with the interface that `oracle` expects."""

    def __init__(self, model: torch.nn.Module, audio: Audio, token: int):
        self.model, self.audio, self.token = model, audio, token
        self.features = spectrogram(audio, CLIPS[0])[None]

    def __call__(self, input_ids: torch.Tensor, use_cache: bool):
        taken = {"input_features": self.features}
        if isinstance(self.model, Ultravox):
            taken = {"given": self.model.rows(self.features[0]), "token": self.token}
        elif self.audio.rows is qwen_rows:
            heard = -(-CLIPS[0] // HOP)
            taken["feature_attention_mask"] = (torch.arange(FRAMES)[None] < heard).long()
        return self.model(input_ids=input_ids, use_cache=use_cache, **taken)


def whole_model(audio: Audio, config, text_state: dict, token: int, rng) -> torch.nn.Module:
    """As `vision.whole_model`; the converter stores convolutions in half precision."""
    model = vision.whole_model(audio, config, text_state, token, rng)
    for name, values in model.named_parameters():
        if "conv" in name and name.endswith(".weight"):
            values.data = values.half().float()
    return model


def write_preprocessor(folder: Path, audio: Audio) -> None:
    transformers.WhisperFeatureExtractor(feature_size=audio.mels).save_pretrained(folder)
    if audio.is_joined:
        path = folder / "preprocessor_config.json"
        stated = dict(feature_extractor=json.loads(path.read_text()))
        (folder / "processor_config.json").write_text(json.dumps(stated) + "\n")
        path.write_text("{}\n")


def write_encoder(path: Path, audio: Audio, model: torch.nn.Module, tokenizer, llama_cpp: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        # The converter writes the name of the directory into the file.
        folder = Path(name) / f"tiny-{path.parent.name}"
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        vision.with_own_tokens(config)
        (folder / "config.json").write_text(json.dumps(config) + "\n")
        write_preprocessor(folder, audio)
        vision.write_tokenizer(folder, tokenizer, audio)
        vision.convert(folder, path, llama_cpp)
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        vision.write_directory(path.parent / "directory", folder, weights, audio.is_whole)


def generate(name: str, audio: Audio, llama_cpp: Path) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    folder = families.FIXTURES / "audio" / name
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.byte_level(vocabulary.SPECIAL + audio.special, vision.SIZE)
    token = tokenizer.token_to_id(audio.row_token)
    config, text_state = vision.write_text(folder / "text.gguf", name, audio, rng)
    model = whole_model(audio, config, text_state, token, rng)
    write_encoder(folder / "mmproj.gguf", audio, model, tokenizer, llama_cpp)
    clips = []
    for samples in CLIPS:
        rows = rows_of(audio, model, samples)
        text = audio.around[0] + audio.row_token * len(rows) + audio.around[1]
        every_eighth = spectrogram(audio, samples).T[::8].reshape(-1).tolist() if samples == CLIPS[0] else []
        clips.append(dict(samples=samples, text=text, frames=[oracle.rounded(value) for value in every_eighth],
                          rows=[oracle.rounded(value) for value in rows.reshape(-1).tolist()]))  # fmt: skip
    prompt = tokenizer.encode(PROMPT.format(clips[0]["text"])).ids
    oracle.write_json(folder / "expected.json", {
        "oracle": f"transformers {transformers.__version__} {type(model).__name__}, float32",
        "sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.gguf"))},
        "placeholder": audio.placeholder,
        "row_token": audio.row_token,
        "row_token_id": token,
        "mels": audio.mels,
        "width": config.hidden_size,
        "clips": clips,
        "prompt": PROMPT.format(audio.placeholder),
        "prompts": [oracle.prompt_case(Heard(model, audio, token), prompt, CONTINUATION)],
    })  # fmt: skip
    print(f"{name:12} {sum(file.stat().st_size for file in folder.rglob('*')) / 1024:7.0f} KiB", flush=True)


def main(llama_cpp: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in names or MODELS:
        generate(name, MODELS[name], llama_cpp)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
