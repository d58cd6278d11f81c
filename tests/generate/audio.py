"""Writes tiny random models that hear audio, and what transformers makes of some clips and computes with them.

    python tests/generate/audio.py LLAMA_CPP [NAME ...]      (needs torch, transformers, tokenizers, gguf)

LLAMA_CPP is a checkout of llama.cpp, whose converter writes the audio encoders. Writes `tests/fixtures/audio/NAME`:

- `text.gguf`: the language model; `mmproj.gguf`: the audio encoder and its projector
- `directory`: the whole model as published on the Hugging Face Hub; that of Ultravox has no language model
- `directory-*`: the same in another layout
- `expected.json`: of some clips the text that stands for them, some frames of their spectrogram and their embedding rows; and
  the log-probabilities of a prompt with the first clip

Windows have 96 frames instead of 3000, those of Qwen 3 ASR 800. Ultravox is no part of transformers: its encoder is that of Whisper there, and its
projector is written here by the layout of `ultravox_model.py` of fixie-ai/ultravox-v0_5-llama-3_2-1b.
"""

import hashlib
import json
import re
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
from gguf import MODEL_ARCH as ARCH
from gguf import GGMLQuantizationType as Format
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import families
import llama_likes
import oracle
import vision
import vocabulary
from checkpoint import Checkpoint, rope, sizes
from clips import FRAMES, HOP, ROWS, clip

# Samples of each clip; the first is in the prompt. Less than a window, a whole one, more than one, and a few frames.
CLIPS = (11000, FRAMES * HOP, 20000, 500)
PROMPT = vision.PROMPT
CONTINUATION = 12
# The converter knows numbers of convolutions up to that of the last layer.
ENCODER = dict(encoder_layers=3, encoder_attention_heads=2, encoder_ffn_dim=32, d_model=16, max_source_positions=ROWS)
VOXTRAL = dict(num_hidden_layers=3, num_attention_heads=2, intermediate_size=4 * 16, hidden_size=16, max_source_positions=ROWS)
STACK = 8
# The layers attend within 800 frames; the converter knows numbers of convolutions below that of the layers.
GEMMA4_ENCODER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, subsampling_conv_channels=[16, 4],
                      output_proj_dims=24, input_feat_size=16)  # fmt: skip
OMNI_ENCODER = dict(encoder_layers=3, encoder_attention_heads=2, encoder_ffn_dim=32, d_model=16, num_mel_bins=20, output_dim=32, n_window=100)
QWEN3_ENCODER = dict(encoder_layers=4, encoder_attention_heads=2, encoder_ffn_dim=32, d_model=16, num_mel_bins=20, output_dim=32,
                     downsample_hidden_size=8, n_window=50, n_window_infer=800)  # fmt: skip


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


def qwen3_features(audio: "Audio", samples: int) -> dict[str, torch.Tensor]:
    """What the model takes: the spectrogram of a clip up to a whole second, and which of its frames are those of the clip."""
    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=audio.mels)
    found = extractor(clip(samples).astype(np.float32) / 32768, sampling_rate=16000, padding=True, return_attention_mask=True)
    return dict(input_features=found["input_features"], input_features_mask=found["attention_mask"])


def gemma4_features(audio: "Audio", samples: int) -> dict[str, torch.Tensor]:
    """What the model takes: the spectrogram of a clip, and which of its frames are those of the clip."""
    extractor = transformers.Gemma4AudioFeatureExtractor(feature_size=audio.mels)
    found = extractor([clip(samples).astype(np.float32) / 32768], return_tensors="pt")
    return dict(input_features=found["input_features"].float(), input_features_mask=found["input_features_mask"])


def gemma4_rows(model: torch.nn.Module, audio: "Audio", samples: int) -> torch.Tensor:
    found = model.model.get_audio_features(**gemma4_features(audio, samples))
    return found.pooler_output[found.attention_mask]


def with_even_factors(name: str, values: torch.Tensor) -> torch.Tensor:
    """Factors whose softplus in float32 is the nearest number to the exact one."""
    if not name.endswith("per_dim_scale"):
        return values
    values = torch.round(values * 64) / 64
    exact = lambda: torch.nn.functional.softplus(values.double()).float()
    while (differs := torch.nn.functional.softplus(values) != exact()).any():
        values = torch.where(differs, values + 1 / 64, values)
    return values


def omni_features(audio: "Audio", samples: int) -> dict[str, torch.Tensor]:
    """What the model takes: the spectrogram of a clip and of silence up to 30 seconds, and which of its frames are those of the clip."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=audio.mels)
    found = extractor(clip(samples).astype(np.float32) / 32768, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt")
    return dict(input_features=found["input_features"], feature_attention_mask=found["attention_mask"])


def in_omni(folder: Path, out: Path) -> None:
    """The part that understands, as published with the parts that speak."""
    out.mkdir()
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    whole = dict(architectures=["Qwen2_5OmniModel"], model_type="qwen2_5_omni", thinker_config=config)
    (out / "config.json").write_text(json.dumps(whole) + "\n")
    state = {f"thinker.{name}": values for name, values in safetensors.torch.load_file(folder / "model.safetensors").items()}
    safetensors.torch.save_file(state, out / "model.safetensors", metadata={"format": "pt"})


def in_thinker(folder: Path, out: Path) -> None:
    """The model of a folder in the layout of Qwen's own program."""
    out.mkdir()
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    inner = {key: config.pop(key) for key in ("audio_config", "text_config", "audio_token_id")}
    inner["text_config"]["rope_scaling"] = dict(interleaved=True, mrope_interleaved=True, mrope_section=[4, 2, 2], rope_type="default", type="default")
    inner["text_config"].pop("rope_parameters")
    inner["text_config"]["rope_theta"] = 10000.0
    del inner["text_config"]["model_type"]
    config = dict(architectures=config["architectures"], model_type="qwen3_asr", thinker_config=inner | dict(model_type="qwen3_asr_thinker"))
    (out / "config.json").write_text(json.dumps(config) + "\n")
    renamed = {r"^model\.language_model\.": "thinker.model.", r"^lm_head": "thinker.lm_head", r"^model\.audio_tower": "thinker.audio_tower",
               r"^model\.multi_modal_projector\.linear_": "thinker.audio_tower.proj"}  # fmt: skip
    state = {}
    for name, values in safetensors.torch.load_file(folder / "model.safetensors").items():
        for pattern, start in renamed.items():
            name = re.sub(pattern, start, name)
        state[name] = values
    safetensors.torch.save_file(state, out / "model.safetensors", metadata={"format": "pt"})


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
    rows: Callable[[torch.nn.Module, torch.Tensor, int], torch.Tensor] | None = None
    # Whether silence follows up to whole windows.
    is_padded: bool = True
    rounded: bool = False
    # The type of a clip in a message, as the chat template compares it.
    part: str = "audio"
    # Whether the directory has the language model and its tokenizer too.
    is_whole: bool = True
    # Whether its processor is saved as one file, with the feature extractor in it.
    is_joined: bool = False
    # What a model takes that divides clips itself, and the class of its feature extractor.
    features: Callable[..., dict] | None = None
    extractor: type = transformers.WhisperFeatureExtractor
    clips: tuple[int, ...] = CLIPS
    # The rows of a clip, of models with `features`.
    rows_of_clip: Callable[[torch.nn.Module, "Audio", int], torch.Tensor] | None = None
    # Another layout of the directory, which the converter reads: how to write it, and its name; without a name the only one.
    layout: tuple[Callable[[Path, Path], None], str] | None = None
    # What prepares images, and the sizes that the converter leaves out.
    image_processor: object = None
    sizes: dict[str, int] | None = None


def or_image(placeholder: str) -> str:
    """The comparison of a chat template that writes images, too."""
    return f"image' %}}{placeholder}{{% elif part['type'] == 'audio"


TEXT = vision.TEXT
MODELS = {
    # Layers of the language model have inputs of their own; the file has an encoder of images, too.
    "gemma4a": Audio(
        Checkpoint(families.GEMMA4, vision.GEMMA4_TEXT | dict(
            attention_k_eq_v=False, num_global_key_value_heads=None, hidden_size_per_layer_input=8), {"*": Format.F16}),
        transformers.Gemma4ForConditionalGeneration,
        lambda text, token: transformers.Gemma4Config(
            text_config=text.to_dict(), vision_config=vision.GEMMA4_TOWER | dict(use_clipped_linears=True), image_token_id=0,
            audio_config=GEMMA4_ENCODER, audio_token_id=token),
        "model.language_model.", 16,
        ["<|audio>", "<audio|>", "<|audio|>", *vision.GEMMA4["special"]],
        "<|audio|>", "<|audio|>", ("<|audio>", "<audio|>"),
        features=gemma4_features, rows_of_clip=gemma4_rows, extractor=transformers.Gemma4AudioFeatureExtractor,
        # The last has less than a row, and one before it part of a row.
        clips=(11000, 24000, 8800, 161), is_joined=True, image_processor=vision.MODELS["gemma4-e"].processor,
        sizes=vision.GEMMA4["sizes"], part=or_image("<|image|>"),
    ),
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
    # The file has an encoder of images, too.
    "qwen2.5o": Audio(
        Checkpoint(llama_likes.text_family(ARCH.QWEN2VL, "Qwen2_5_VL"), sizes(**TEXT, rope_parameters=rope(mrope_section=[2, 1, 1])), {"*": Format.F16}),
        transformers.Qwen2_5OmniThinkerForConditionalGeneration,
        lambda text, token: transformers.Qwen2_5OmniThinkerConfig(
            text_config=text.to_dict() | dict(model_type="qwen2_5_omni_text"), audio_config=OMNI_ENCODER, audio_token_id=token,
            image_token_id=0, tie_word_embeddings=False,
            vision_config=vision.QWEN_TOWER | dict(hidden_size=16, intermediate_size=24, out_hidden_size=32, fullatt_block_indexes=[1, 3])),
        "model.language_model.", 20,
        ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|vision_bos|>", "<|IMAGE|>", "<|vision_eos|>"],
        "<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>", ("<|audio_bos|>", "<|audio_eos|>"), features=omni_features,
        # An odd number of frames, two windows, the same with a last frame that is not whole, and a few frames.
        clips=(11000, 36800, 40000, 700), layout=(in_omni, ""), is_joined=True, part=or_image("<|IMAGE|>"), image_processor=vision.QWEN_PROCESSOR,
    ),
    # The file of the language model is one of Qwen 3 VL, as the converter writes it.
    "qwen3a": Audio(
        Checkpoint(llama_likes.text_family(ARCH.QWEN3VL, "Qwen3VL", lambda writer, _: writer.add_num_deepstack_layers(0)),
                   sizes(**TEXT, head_dim=16, rms_norm_eps=1e-6, rope_parameters=rope(mrope_section=[4, 2, 2])), {"*": Format.F16}),
        transformers.Qwen3ASRForConditionalGeneration,
        lambda text, token: transformers.Qwen3ASRConfig(
            text_config=text.to_dict() | dict(model_type="qwen3", rope_parameters=rope()), audio_config=QWEN3_ENCODER | dict(model_type="qwen3_asr_encoder"), audio_token_id=token,
            tie_word_embeddings=False),
        "model.language_model.", 20,
        ["<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<asr_text>"],
        "<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>", ("<|audio_start|>", "<|audio_end|>"),
        features=qwen3_features, extractor=transformers.Qwen3ASRFeatureExtractor,
        # Less than a second, more than a second, more than a window, and less than half a second.
        clips=(11000, 20000, 133600, 500), layout=(in_thinker, "thinker"), is_joined=True,
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


def spectrogram(audio: Audio, samples: int) -> torch.Tensor:
    """[mels, frames] of a clip and the silence after it."""
    if audio.features:
        taken = audio.features(audio, samples)
        frames, heard = taken["input_features"][0], int(next(mask for key, mask in taken.items() if key.endswith("mask")).sum())
        return (frames if frames.shape[0] == audio.mels else frames.T)[:, :heard]
    multiple = FRAMES * HOP if audio.is_padded else HOP
    padded = np.zeros(-(-samples // multiple) * multiple, dtype=np.float32)
    padded[:samples] = clip(samples) / 32768
    extractor = transformers.WhisperFeatureExtractor(feature_size=audio.mels)
    found = extractor(padded, sampling_rate=16000, padding=False, truncation=False, return_tensors="pt")
    return found.input_features[0]


@torch.inference_mode()
def rows_of(audio: Audio, model: torch.nn.Module, samples: int) -> torch.Tensor:
    if audio.features:
        of_clip = audio.rows_of_clip or (lambda *_: model.get_audio_features(**audio.features(audio, samples)).pooler_output)
        return of_clip(model, audio, samples)
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
        if self.audio.features:
            taken = self.audio.features(self.audio, self.audio.clips[0])
        elif isinstance(self.model, Ultravox):
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
        values.data = with_even_factors(name, values.data)
    return model


def write_preprocessor(folder: Path, audio: Audio) -> None:
    audio.extractor(feature_size=audio.mels).save_pretrained(folder)
    if audio.is_joined:
        path = folder / "preprocessor_config.json"
        stated = dict(feature_extractor=json.loads(path.read_text()))
        if audio.image_processor:
            audio.image_processor.save_pretrained(folder)
            stated["image_processor"] = json.loads(path.read_text())
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
        read = folder
        if audio.layout:
            write_layout, layout = audio.layout
            read = Path(name) / "layout" / folder.name
            read.parent.mkdir()
            write_layout(folder, read)
            weights = safetensors.torch.load_file(read / "model.safetensors")
            other = f"directory-{layout}" if layout else "directory"
            vision.write_directory(path.parent / other, read, weights, audio.is_whole)
        vision.convert(read, path, llama_cpp)
        if audio.sizes:
            vision.add_sizes(path, audio.sizes)
        if not audio.layout or audio.layout[1]:
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
    for samples in audio.clips:
        rows = rows_of(audio, model, samples)
        text = audio.around[0] + audio.row_token * len(rows) + audio.around[1]
        every_eighth = spectrogram(audio, samples).T[::8].reshape(-1).tolist() if samples == audio.clips[0] else []
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
