"""Writes tiny random models that see images, and what transformers makes of some images and computes with them.

    python tests/generate/vision.py LLAMA_CPP [NAME ...]      (needs torch, transformers, torchvision, pillow, tokenizers, gguf)

LLAMA_CPP is a checkout of llama.cpp, whose converter writes the vision towers. Writes `tests/fixtures/vision/NAME`:

- `text.gguf`: the language model; `mmproj.gguf`: the tower and its projector
- `mmproj-*.gguf`: the same values in other formats
- `directory`: the tower, or the whole model, as published on the Hugging Face Hub
- `expected.json`: of some images the text that stands for them, the colors of their tiles and their embedding rows; and the
  log-probabilities of a prompt with the first image
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Callable
from unittest import mock

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from gguf import GGMLQuantizationType as Format
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4_unified.image_processing_gemma4_unified import patches_merge
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.image_processing_backends import TorchvisionBackend
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

import families
import hybrids
import ling_vl
import llama_likes
import oracle
import several_streams
import state_spaces
import text_models
import vocabulary
from checkpoint import Checkpoint, rope, sizes

SIZE = 320
# Width and height; the first has its rows compared and is in the prompt.
IMAGES = ((61, 37), (20, 50), (28, 28), (9, 5))
PROMPT = "<|im_start|>user\nThe harbour {} was quiet before the storm.<|im_end|>\n<|im_start|>assistant\n"
CONTINUATION = 12
TEXT = dict(vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
TOWER = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=7)
MEAN, DEVIATION = [0.5, 0.45, 0.4], [0.25, 0.3, 0.35]
COLORS = dict(image_mean=MEAN, image_std=DEVIATION)
SEVEN = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]


@dataclass(frozen=True)
class Vision:
    """One model: transformers' classes and sizes, and how its processor writes images."""

    text: Checkpoint
    model: type
    config: Callable[..., object]
    # What the names of the language model's tensors start with.
    text_prefix: str
    processor: object
    special: list[str]
    placeholder: str
    row_token: str
    rows_of_tile: int
    # The text that stands for an image, from what the processor returns.
    expanded: Callable[[dict, "Vision"], str]
    merge: int
    # Changes of `config.json` that transformers does not write.
    changes: Callable[[dict], None] = lambda config: None
    # The start of a tensor's name as transformers writes it, and in published models.
    published: tuple[str, str] = ("", "")
    preprocessor: dict | None = None
    # Writes the file of the tower, where the converter of the checkout does not know it.
    write_file: Callable[[Path, torch.nn.Module], None] | None = None
    rounded: bool = False
    marks_rows: bool = False
    # What the processor returns next to the colors, and the model takes.
    also_taken: str | tuple[str, ...] = ()
    # The name of the argument that marks the rows of images.
    marks: str = "token_type_ids"
    # Whether the model gets the masks of its `create_masks_for_generate`. Those of its `forward` differ: rows would see each other in
    # every layer, as in Gemma 3, and not in layers with a window only, as in the other models of its family and in llama.cpp.
    generates_masks: bool = False
    # Whether they are marked because they see each other.
    sees_each_other: bool = False
    # Sizes that the file of the tower gets in addition to those of the converter.
    sizes: dict[str, int] | None = None
    # Whether the colors of tiles are stored.
    keeps_colors: bool = True
    # Pixels of a side of a patch.
    patch: int = TOWER["patch_size"]
    # The mean and the deviation of the colors that the processor returns, and whether the tower doubles their range.
    colors: tuple[list[float], list[float]] = (MEAN, DEVIATION)
    doubles_colors: bool = False
    # Layers of the language model that add values of images.
    deep: int = 0
    # The type of its parts in the messages of chat templates.
    part: str = "image"
    images: tuple[tuple[int, int], ...] = IMAGES
    # Whether the directory has the language model and its tokenizer too.
    is_whole: bool = False
    # Writes how media are prepared.
    write_preprocessor: Callable[[Path, "Vision"], None] = lambda folder, vision: write_stated(folder, vision)


def smolvlm_text(returned: dict, vision: Vision) -> str:
    rows, columns = returned["rows"][0][0], returned["cols"][0][0]
    return get_image_prompt_string(rows, columns, vision.rows_of_tile, "<fake_token_around_image>", "<image>", "<global-img>")


def gemma_text(returned: dict, vision: Vision) -> str:
    return f"\n\n<start_of_image>{vision.row_token * vision.rows_of_tile}<end_of_image>\n\n"


def gemma4_text(returned: dict, vision: Vision) -> str:
    return f"<|image>{vision.row_token * int(returned['num_soft_tokens_per_image'][0])}<image|>"


def internvl_text(returned: dict, vision: Vision) -> str:
    return f"<img>{vision.row_token * vision.rows_of_tile * int(returned['num_patches'][0])}</img>"


def pixtral_text(returned: dict, vision: Vision) -> str:
    height, width = (int(length) // 14 for length in returned["image_sizes"][0])
    return "[IMG_BREAK]".join([vision.row_token * width] * height) + "[IMG_END]"


def qwen_text(returned: dict, vision: Vision) -> str:
    return vision.row_token * int(returned["image_grid_thw"][0].prod() // vision.merge**2)


def ling_text(returned: dict, vision: Vision) -> str:
    return qwen_text(returned, vision) + "<|vision_end|>\n"


def lfm2_text(returned: dict, vision: Vision) -> str:
    rows, columns = int(returned["image_rows"][0]), int(returned["image_cols"][0])
    count = int(np.prod([int(length) // 32 for length in returned["image_sizes"][0]]))
    tokens = SimpleNamespace(image_token=vision.row_token, image_start_token="<|image_start|>", image_end_token="<|image_end|>",
                             image_thumbnail_token="<|img_thumbnail|>")  # fmt: skip
    return Lfm2VlProcessor._build_image_tokens(tokens, rows, columns, vision.rows_of_tile, count, True, True)


def llava_text(returned: dict, vision: Vision) -> str:
    return vision.row_token * vision.rows_of_tile


def internvl_changes(config: dict) -> None:
    config["architectures"] = ["InternVisionModel"]
    config["vision_config"]["architectures"] = ["InternVisionModel"]
    config["max_dynamic_patch"] = 4


def move_text_out(config: dict, rope_type: str) -> None:
    """The layout of published models that have the values of the language model next to the others."""
    text = config.pop("text_config")
    rope_parameters = text.pop("rope_parameters")
    config.update({key: value for key, value in text.items() if key != "model_type"})
    config["rope_theta"] = rope_parameters["rope_theta"]
    config["rope_scaling"] = dict(type=rope_type, mrope_section=rope_parameters["mrope_section"])


def qwen2_changes(config: dict) -> None:
    move_text_out(config, "mrope")
    for key in ("rope_parameters", "hidden_act"):
        del config["vision_config"][key]
    config["vision_config"]["in_chans"] = config["vision_config"].pop("in_channels")


def paddleocr_changes(config: dict) -> None:
    move_text_out(config, "default")
    config["vision_config"]["architectures"] = ["PaddleOCRVisionModel"]


def write_stated(folder: Path, vision: Vision) -> None:
    """Only what the model states."""
    (folder / "preprocessor_config.json").write_text(json.dumps(COLORS | (vision.preprocessor or {})) + "\n")


def write_saved(folder: Path, vision: Vision) -> None:
    """As transformers saves it alone."""
    vision.processor.save_pretrained(folder)


def write_with_pixels(folder: Path, vision: Vision) -> None:
    """As Qwen 2 VL was published, with other names for the limits."""
    write_saved(folder, vision)
    path = folder / "preprocessor_config.json"
    stated = json.loads(path.read_text())
    size = stated.pop("size")
    stated |= dict(min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
    path.write_text(json.dumps(stated) + "\n")


def write_joined(folder: Path, vision: Vision) -> None:
    """As transformers saves it with the whole processor."""
    write_saved(folder, vision)
    path = folder / "preprocessor_config.json"
    (folder / "processor_config.json").write_text(json.dumps(dict(image_processor=json.loads(path.read_text()))) + "\n")
    path.unlink()


GEMMA_TOWER = TOWER | dict(image_size=56)
# The converter knows numbers of the projector's tensors up to that of the last layer.
INTERN_TOWER = TOWER | dict(num_hidden_layers=4, intermediate_size=48, image_size=[28, 28], patch_size=[7, 7], attention_bias=True)
QWEN_TOWER = dict(depth=4, num_heads=2, patch_size=7, spatial_merge_size=2, temporal_patch_size=2)
QWEN_PROCESSOR = Qwen2VLImageProcessorPil(
    size={"shortest_edge": 8 * 14**2, "longest_edge": 1280 * 14**2}, patch_size=7, merge_size=2, **COLORS)
QWEN = dict(
    text_prefix="model.language_model.", special=["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"],
    placeholder="<|image_pad|>", row_token="<|image_pad|>", rows_of_tile=0, expanded=qwen_text, merge=2,
    also_taken="image_grid_thw", marks_rows=True, marks="mm_token_type_ids", is_whole=True, write_preprocessor=write_saved,
)  # fmt: skip
GLM = QWEN | dict(
    special=["<|begin_of_image|>", "<|image|>", "<|end_of_image|>"], placeholder="<|image|>", row_token="<|image|>",
    # Limits are those of two frames. The last image is smaller than a square of patches.
    processor=Glm4vImageProcessorPil(
        size={"shortest_edge": 2 * 8 * 14**2, "longest_edge": 2 * 1280 * 14**2}, patch_size=7, merge_size=2, **COLORS),
)  # fmt: skip
GLM_TEXT = sizes(**TEXT, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, rms_norm_eps=1e-5,
                 rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1]))  # fmt: skip
GLM_TOWER = dict(depth=3, num_heads=2, hidden_size=16, intermediate_size=40, out_hidden_size=32, patch_size=7, image_size=28,
                 spatial_merge_size=2, temporal_patch_size=2)  # fmt: skip


def resized_by_pillow(backend, images: torch.Tensor, size, resample=None, **_) -> torch.Tensor:
    """The images in this size, with Pillow's arithmetic instead of torchvision's."""
    resized = [Image.fromarray(one.permute(1, 2, 0).numpy()).resize((size.width, size.height), Image.Resampling(int(resample)))
               for one in images]  # fmt: skip
    return torch.stack([torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) for one in resized])


class ResizedByPillow:
    """A processor that resizes with Pillow."""

    def __init__(self, inner):
        self.inner = inner

    def save_pretrained(self, folder: Path) -> None:
        self.inner.save_pretrained(folder)

    def __call__(self, images: list[np.ndarray], return_tensors: str) -> dict:
        with mock.patch.object(TorchvisionBackend, "resize", resized_by_pillow):
            return self.inner(images=images, return_tensors=return_tensors)


class MergedPatches:
    """The processor of Gemma 4 12B on Pillow: a square of patches becomes one patch."""

    def __init__(self, **options):
        self.inner = Gemma4ImageProcessorPil(**options)

    def save_pretrained(self, folder: Path) -> None:
        self.inner.save_pretrained(folder)

    def __call__(self, images: list[np.ndarray], return_tensors: str) -> dict:
        returned = self.inner(images=images, return_tensors=return_tensors)
        places = returned["image_position_ids"][0]
        count = int((places >= 0).all(dim=-1).sum())
        rows = int(returned["num_soft_tokens_per_image"][0])
        patches, places = patches_merge(returned["pixel_values"][:, :count].float(), places[None, :count], rows)
        return dict(returned) | dict(pixel_values=patches, image_position_ids=places)


GEMMA4_TOWER = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                    head_dim=8, patch_size=2, position_embedding_size=210)  # fmt: skip
GEMMA4_TEXT = families.GEMMA4_SIZES | TEXT | dict(
    vocab_size_per_layer_input=SIZE, layer_types=["sliding_attention", "full_attention"], enable_moe_block=False)
GEMMA4 = dict(
    text_prefix="model.language_model.", processor=Gemma4ImageProcessorPil(patch_size=2, max_soft_tokens=70),
    special=["<|image>", "<|image|>", "<image|>"], placeholder="<|image|>", row_token="<|image|>", rows_of_tile=0,
    expanded=gemma4_text, merge=3, also_taken="image_position_ids", marks_rows=True, marks="mm_token_type_ids",
    sees_each_other=True, is_whole=True, patch=2, colors=([0.0] * 3, [1.0] * 3), doubles_colors=True,
    sizes=dict(image_max_pixels=70 * 6**2),
)  # fmt: skip


def write_unified_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


GEMMA4_UNIFIED = replace(families.GEMMA4, model=transformers.Gemma4UnifiedForCausalLM, config=transformers.Gemma4UnifiedTextConfig,
                         write_keys=write_unified_keys)  # fmt: skip
OF_EXPERTS_AND_LAYERS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "num_experts",
                         "top_k_experts", "moe_intermediate_size")  # fmt: skip


def unified_config(text, token: int) -> object:
    return transformers.Gemma4UnifiedConfig(
        text_config=text.to_dict(), image_token_id=token,
        audio_config=transformers.Gemma4UnifiedAudioConfig(audio_embed_dim=8).to_dict(),
        vision_config=dict(patch_size=2, pooling_kernel_size=3, mm_embed_dim=24, mm_posemb_size=70, output_proj_dims=24))  # fmt: skip


def gemma4_config(**tower) -> Callable[..., object]:
    return lambda text, token: transformers.Gemma4Config(
        text_config=text.to_dict(), vision_config=GEMMA4_TOWER | tower, audio_config=None, image_token_id=token)


MODELS = {
    "idefics3": Vision(
        Checkpoint(families.LLAMA, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        transformers.SmolVLMForConditionalGeneration,
        lambda text, token: transformers.SmolVLMConfig(
            text_config=text, vision_config=TOWER, scale_factor=2, image_token_id=token),
        "model.text_model.",
        Idefics3ImageProcessorPil(size={"longest_edge": 84}, max_image_size={"longest_edge": 28}, return_row_col_info=True,
                                  **COLORS),
        ["<fake_token_around_image>", "<image>", "<global-img>", *SEVEN],
        "<image>", "<image>", 4, smolvlm_text, 2,
        preprocessor=dict(size={"longest_edge": 84}, max_image_size={"longest_edge": 28}),
        rounded=True,
    ),
    "gemma3": Vision(
        Checkpoint(families.GEMMA3, families.GEMMA3_SIZES | TEXT | dict(num_hidden_layers=6),
                   {"*": Format.F16}),
        transformers.Gemma3ForConditionalGeneration,
        lambda text, token: transformers.Gemma3Config(
            text_config=text, vision_config=GEMMA_TOWER, mm_tokens_per_image=4, image_token_index=token),
        "model.language_model.",
        Gemma3ImageProcessorPil(size={"height": 56, "width": 56}, **COLORS),
        ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        "<start_of_image>", "<image_soft_token>", 4, gemma_text, 4,
        preprocessor=dict(image_seq_length=4),
        published=("vision_tower.", "vision_tower.vision_model."),
        marks_rows=True,
        sees_each_other=True,
    ),
    # Rows of the image see each other in the first layer, whose window is shorter than the image.
    "gemma4": Vision(
        Checkpoint(families.GEMMA4, GEMMA4_TEXT | dict(use_bidirectional_attention="vision"), {"*": Format.F16}),
        transformers.Gemma4ForConditionalGeneration, gemma4_config(standardize=True),
        images=((61, 37), (20, 50), (300, 2)), **GEMMA4 | dict(write_preprocessor=write_joined),
    ),
    # Layers have inputs of their own, and rows of images see those before them only.
    "gemma4-e": Vision(
        Checkpoint(families.GEMMA4, GEMMA4_TEXT | dict(
            attention_k_eq_v=False, num_global_key_value_heads=None, hidden_size_per_layer_input=8), {"*": Format.F16}),
        transformers.Gemma4ForConditionalGeneration, gemma4_config(use_clipped_linears=True),
        images=((37, 61), (20, 50)), **GEMMA4 | dict(write_preprocessor=write_saved),
    ),
    "gemma4_unified": Vision(
        Checkpoint(GEMMA4_UNIFIED, {key: value for key, value in GEMMA4_TEXT.items() if key not in OF_EXPERTS_AND_LAYERS}
                   | dict(use_bidirectional_attention="vision"), {"*": Format.F16}),
        transformers.Gemma4UnifiedForConditionalGeneration, unified_config, images=((61, 37), (20, 50)),
        **GEMMA4 | dict(write_preprocessor=write_joined, processor=MergedPatches(patch_size=2, max_soft_tokens=70), patch=6, merge=1,
                        doubles_colors=False, generates_masks=True),
    ),
    # Patches have 16 pixels a side, because the converter knows no others, so the colors of tiles would be large: they are left out.
    "lfm2": Vision(
        Checkpoint(state_spaces.LFM2, state_spaces.LFM2_SIZES | dict(
            vocab_size=SIZE, num_hidden_layers=2, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
            {"*": Format.F16}),
        transformers.Lfm2VlForConditionalGeneration,
        lambda text, token: transformers.Lfm2VlConfig(
            text_config=text.to_dict(), image_token_id=token, projector_hidden_size=24,
            vision_config=transformers.Siglip2VisionConfig(
                hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, vision_use_head=False).to_dict()),
        "model.language_model.",
        ResizedByPillow(Lfm2VlImageProcessor(return_row_col_info=True, **COLORS)),
        ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<image>"],
        "<image>", "<image>", 256, lfm2_text, 2,
        also_taken=("spatial_shapes", "pixel_attention_mask"),
        images=((61, 37), (20, 50), (1100, 600)),
        published=("model.vision_tower.", "model.vision_tower.vision_model."), keeps_colors=False, is_whole=True, patch=16, write_preprocessor=write_saved,
    ),
    # Two layers with convolutions follow each other.
    "lfm3": Vision(
        Checkpoint(state_spaces.LFM3, state_spaces.CHECKPOINTS["lfm3"].config | dict(
            vocab_size=SIZE, num_hidden_layers=3, layer_types=["conv", "full_attention", "sliding_attention"]), {"*": Format.F16}),
        transformers.Lfm3VlForConditionalGeneration,
        lambda text, token: transformers.Lfm3VlConfig(
            text_config=text.to_dict(), image_token_id=token, projector_hidden_size=24,
            vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                               patch_size=7, layer_types=["conv", "conv", "full_attention", "conv"])),
        processor=QWEN_PROCESSOR, **QWEN | dict(
            marks_rows=False, write_preprocessor=write_joined, write_file=lambda path, model: write_lfm3(path, model)),
    ),
    "exaone4_5": Vision(
        Checkpoint(llama_likes.EXAONE4, llama_likes.CHECKPOINTS["exaone4"].config | dict(vocab_size=SIZE, tie_word_embeddings=False),
                   {"*": Format.F16}),
        transformers.Exaone4_5_ForConditionalGeneration,
        lambda text, token: transformers.Exaone4_5_Config(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=QWEN_TOWER | dict(
                num_heads=4, num_key_value_heads=2, hidden_size=16, intermediate_size=24, out_hidden_size=text.hidden_size,
                fullatt_block_indexes=[1, 3])),
        processor=QWEN_PROCESSOR, **QWEN | dict(
            special=["<vision>", "<|image_pad|>", "</vision>"], marks_rows=False, write_preprocessor=write_with_pixels,
            images=((130, 30), *IMAGES[1:])),
    ),
    "ling3vl": Vision(
        Checkpoint(ling_vl.LING3_VL, hybrids.LING3_SIZES | dict(vocab_size=SIZE), {"*": Format.F16}),
        ling_vl.LingVl,
        ling_vl.config(QWEN_TOWER | dict(hidden_size=16, intermediate_size=32, out_hidden_size=64, num_position_embeddings=16,
                                         deepstack_visual_indexes=[], in_channels=3, hidden_act="gelu_pytorch_tanh")),
        processor=QWEN_PROCESSOR, **QWEN | dict(
            text_prefix="model.", marks_rows=False, placeholder="<|image_pad|><|vision_end|>", expanded=ling_text,
            sizes=dict(image_min_pixels=QWEN_PROCESSOR.size["shortest_edge"], image_max_pixels=QWEN_PROCESSOR.size["longest_edge"])),
    ),
    "internvl": Vision(
        Checkpoint(families.QWEN2, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        transformers.InternVLForConditionalGeneration,
        lambda text, token: transformers.InternVLConfig(
            text_config=text, vision_config=INTERN_TOWER,
            image_token_id=token, tie_word_embeddings=False),
        "model.language_model.",
        GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=4, **COLORS),
        ["<img>", "</img>", "<IMG_CONTEXT>"],
        "<IMG_CONTEXT>", "<IMG_CONTEXT>", 4, internvl_text, 2,
        changes=internvl_changes,
        preprocessor=dict(size={"height": 28, "width": 28}, max_patches=4),
        published=("", "model."),
    ),
    "pixtral": Vision(
        Checkpoint(families.MISTRAL, sizes(**TEXT, rms_norm_eps=1e-5, rope_parameters=rope()), {"*": Format.F16}),
        transformers.Mistral3ForConditionalGeneration,
        lambda text, token: transformers.Mistral3Config(
            text_config=text, vision_config=transformers.PixtralVisionConfig(**TOWER | dict(
                num_hidden_layers=3, hidden_size=16, intermediate_size=32, num_attention_heads=2, image_size=56, head_dim=8, hidden_act="silu")),
            image_token_index=token, spatial_merge_size=2, tie_word_embeddings=False),
        "model.language_model.",
        PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}, **COLORS),
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        "[IMG]", "[IMG]", 0, pixtral_text, 2,
        also_taken="image_sizes",
        is_whole=True,
        write_preprocessor=write_saved,
    ),
    "qwen2vl": Vision(
        Checkpoint(llama_likes.text_family(ARCH.QWEN2VL, "Qwen2VL"), sizes(**TEXT, rms_norm_eps=1e-6, rope_parameters=rope(mrope_section=[2, 1, 1])), {"*": Format.F16}),
        transformers.Qwen2VLForConditionalGeneration,
        lambda text, token: transformers.Qwen2VLConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=QWEN_TOWER | dict(embed_dim=16, hidden_size=32, mlp_ratio=2)),
        processor=QWEN_PROCESSOR, changes=qwen2_changes, **QWEN | dict(write_preprocessor=write_with_pixels),
    ),
    "qwen2_5vl": Vision(
        Checkpoint(llama_likes.text_family(ARCH.QWEN2VL, "Qwen2_5_VL"), sizes(**TEXT, rope_parameters=rope(mrope_section=[2, 1, 1])), {"*": Format.F16}),
        transformers.Qwen2_5_VLForConditionalGeneration,
        lambda text, token: transformers.Qwen2_5_VLConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=QWEN_TOWER | dict(hidden_size=16, intermediate_size=24, out_hidden_size=32,
                                            fullatt_block_indexes=[1, 3])),
        # Two windows beside each other, of which one is smaller.
        processor=QWEN_PROCESSOR, **QWEN | dict(images=((130, 30), *IMAGES[1:])),
    ),
    "qwen3vl": Vision(
        Checkpoint(llama_likes.text_family(ARCH.QWEN3VL, "Qwen3VL", lambda writer, _: writer.add_num_deepstack_layers(2)),
                   sizes(**TEXT, head_dim=16, rms_norm_eps=1e-6, rope_parameters=rope(mrope_section=[4, 2, 2])), {"*": Format.F16}),
        transformers.Qwen3VLForConditionalGeneration,
        lambda text, token: transformers.Qwen3VLConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=QWEN_TOWER | dict(hidden_size=16, intermediate_size=32, out_hidden_size=32,
                                            num_position_embeddings=16, deepstack_visual_indexes=[0, 2])),
        processor=QWEN_PROCESSOR, **QWEN | dict(deep=2, write_preprocessor=write_joined),
    ),
    "glm4v": Vision(
        Checkpoint(llama_likes.GLM4V, GLM_TEXT, {"*": Format.F16}),
        transformers.Glm4vForConditionalGeneration,
        lambda text, token: transformers.Glm4vConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False, vision_config=GLM_TOWER),
        **GLM,
    ),
    # Norms of queries and keys, and no table of positions.
    "glm_ocr": Vision(
        Checkpoint(replace(llama_likes.GLM4V, model=text_models.causal("GlmOcr"), config=transformers.GlmOcrTextConfig),
                   GLM_TEXT, {"*": Format.F16}),
        transformers.GlmOcrForConditionalGeneration,
        lambda text, token: transformers.GlmOcrConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False, vision_config=GLM_TOWER),
        **GLM,
    ),
    # No rotation of the language model's rows. Limits so low that they apply. The third image is enlarged, the last one made smaller.
    "glm5v": Vision(
        Checkpoint(several_streams.GLM5_NEXT, several_streams.CHECKPOINTS["glm5-next"].config | TEXT | dict(
            layer_types=["linear_attention", "indexed_attention"], indexer_types=["full", "full"],
            mlp_layer_types=["dense", "sparse"]), {"*": Format.F16}, head_gain=4.0),
        transformers.Glm5NextForConditionalGeneration,
        lambda text, token: transformers.Glm5NextConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=GLM_TOWER | dict(projection_intermediate_size=48, swiglu_limit=1.0)),
        **GLM | dict(
            processor=Glm5NextImageProcessorPil(patch_size=7, merge_size=2, min_image_tokens=8, max_image_tokens=40, **COLORS),
            marks_rows=False, images=(*IMAGES, (200, 120), (3, 90))),
    ),
    "qwen3_5": Vision(
        Checkpoint(hybrids.QWEN35, hybrids.delta(
            **TEXT, rms_norm_eps=1e-6, layer_types=["linear_attention", "full_attention"], rope_parameters=hybrids.SECTIONS, tie_word_embeddings=False),
            {"*": Format.F16}),
        transformers.Qwen3_5ForConditionalGeneration,
        lambda text, token: transformers.Qwen3_5Config(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=QWEN_TOWER | dict(hidden_size=16, intermediate_size=32, out_hidden_size=32, num_position_embeddings=16)),
        processor=QWEN_PROCESSOR, **QWEN | dict(write_preprocessor=write_joined),
    ),
    # The last image is smaller than a square of patches.
    "paddleocr_vl": Vision(
        Checkpoint(llama_likes.text_family(ARCH.PADDLEOCR, "PaddleOCR"),
                   sizes(**TEXT, head_dim=16, rms_norm_eps=1e-5, rope_parameters=rope(mrope_section=[4, 2, 2])), {"*": Format.F16}),
        transformers.PaddleOCRVLForConditionalGeneration,
        lambda text, token: transformers.PaddleOCRVLConfig(
            text_config=text.to_dict(), image_token_id=token, tie_word_embeddings=False,
            vision_config=dict(hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=28,
                               patch_size=7, spatial_merge_size=2)),
        processor=PaddleOCRVLImageProcessorPil(
            size={"shortest_edge": 8 * 14**2, "longest_edge": 1280 * 14**2}, patch_size=7, merge_size=2, **COLORS),
        changes=paddleocr_changes,
        **QWEN | dict(special=["<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"], placeholder="<|IMAGE_PLACEHOLDER|>",
                      row_token="<|IMAGE_PLACEHOLDER|>", write_preprocessor=write_with_pixels),
    ),
    "llava": Vision(
        Checkpoint(families.LLAMA, sizes(**TEXT, rope_parameters=rope()), {"*": Format.F16}),
        transformers.LlavaForConditionalGeneration,
        lambda text, token: transformers.LlavaConfig(
            text_config=text, vision_config=transformers.CLIPVisionConfig(**TOWER | dict(num_hidden_layers=3)),
            image_token_id=token, vision_feature_layer=-2, vision_feature_select_strategy="default"),
        "model.language_model.",
        LlavaImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_pad=True, **COLORS),
        ["<image>"],
        "<image>", "<image>", 16, llava_text, 1,
        preprocessor=dict(size={"shortest_edge": 28}, do_center_crop=True, do_pad=True),
        published=("vision_tower.", "vision_tower.vision_model."),
        write_file=lambda path, model: write_clip(path, model),
    ),
}  # fmt: skip


def image(width: int, height: int) -> np.ndarray:
    """[height, width, 3]: the formula of `tests/vision_encoders.rs`."""
    y, x, color = np.ogrid[:height, :width, :3]
    return ((x * 7 + y * 13 + color * 50 + x * y % 17 * 5) % 256).astype(np.uint8)


def template(placeholder: str, part: str = "image") -> str:
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == '"
        + part
        + "' %}"
        + placeholder
        + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Values that keep activations near 1."""
    noise = rng.standard_normal(shape)
    if limit := re.search("put_(min|max)$", name):
        return (-1 if limit[1] == "min" else 1) * np.abs(1 + 0.3 * noise)
    if re.search(r"norm\w*\.weight$", name) and len(shape) == 1:
        return 0.2 * noise if "soft_emb" in name else 1 + 0.2 * noise
    if "lambda_" in name or name.endswith("std_scale"):
        return 0.7 + 0.2 * noise
    if name.endswith(".bias"):
        return 0.3 * noise
    if len(shape) == 1 or "position_embedding" in name or "cls_token" in name:
        return 0.5 * noise
    inputs = shape[0] if name.endswith("projection_weight") else np.prod(shape[1:])
    return (2.0 if re.search("[qk]_proj", name) else 1.0) / np.sqrt(inputs) * noise


def round_to(name: str, values: np.ndarray) -> np.ndarray:
    """Values that Q8_0, F16 or BF16 store exactly, as `store_rounded` chooses."""
    if values.ndim == 1 or "position" in name:
        return values
    format = Format.F16 if values.ndim == 4 else Format.BF16 if "connector" in name else Format.Q8_0
    return gguf.quants.dequantize(gguf.quants.quantize(values, format), format).reshape(values.shape)


def copied_keys(path: Path, out: Path) -> tuple[gguf.GGUFReader, gguf.GGUFWriter]:
    """A tower, and a file with its keys and without tensors."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "clip")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    return reader, writer


def add_sizes(path: Path, sizes: dict[str, int]) -> None:
    """Adds keys that the converter leaves out because all published models have the same value."""
    reader, writer = copied_keys(path, path.with_suffix(".new"))
    for key, value in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)


def store_rounded(path: Path, out: Path) -> None:
    """A copy of a tower with matrices in Q8_0, the kernel of patches in F16 and the projection in BF16."""
    reader, writer = copied_keys(path, out)
    for tensor in reader.tensors:
        values, format = tensor.data, Format.F32
        if len(tensor.shape) == 4:
            format = Format.F16
        elif tensor.name.startswith("v.blk.") and len(tensor.shape) == 2:
            format = Format.Q8_0
        elif tensor.name.startswith("mm.") and len(tensor.shape) == 2:
            format = Format.BF16
        stored = gguf.quants.quantize(values, format)
        assert np.array_equal(gguf.quants.dequantize(stored, format).reshape(values.shape), values), tensor.name
        writer.add_tensor(tensor.name, stored, raw_dtype=format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_text(path: Path, name: str, vision: Vision, rng) -> tuple[object, dict[str, torch.Tensor]]:
    """The language model; returns transformers' configuration and weights."""
    special = vocabulary.SPECIAL + vision.special
    family = replace(vision.text.family, write_vocabulary=lambda writer: vocabulary.write_byte_level(
        writer, special, SIZE, template(vision.placeholder, vision.part)))  # fmt: skip
    checkpoint = replace(vision.text, family=family)
    config, shapes = families.layers_of(checkpoint)
    writer = gguf.GGUFWriter(path, family.name)
    families.write_metadata(writer, name, checkpoint, config)
    family.write_vocabulary(writer)
    state = families.write_weights(writer, checkpoint, config, shapes, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config, state


def whole_model(vision: Vision, config, text_state: dict, token: int, rng) -> torch.nn.Module:
    """The model with the weights of the language model's file and random ones for the tower."""
    whole = vision.config(config, token)
    whole._attn_implementation = "eager"
    model = vision.model(whole).to(torch.float32).eval()
    renamed = {re.sub(r"^model\.", vision.text_prefix, key): value for key, value in text_state.items()}
    state = {}
    for key, value in model.state_dict().items():
        if key in renamed or key == "lm_head.weight":
            continue
        values = draw(key, tuple(value.shape), rng).astype(np.float32)
        values = round_to(key, values) if vision.rounded else values
        if key.endswith("input_projection_weight"):
            # The converter stores this one in half precision.
            values = values.astype(np.float16).astype(np.float32)
        state[key] = torch.from_numpy(np.ascontiguousarray(values)).to(value.dtype)
    state = {key: value for key, value in state.items() if "position_ids" not in key}
    missing, unexpected = model.load_state_dict(state | renamed, strict=False)
    assert not unexpected and not [key for key in missing if key != "lm_head.weight" and "position_ids" not in key], (missing, unexpected)
    model.tie_weights()
    return model


def convert(folder: Path, out: Path, llama_cpp: Path) -> None:
    """Writes the tower with llama.cpp's converter."""
    command = [sys.executable, llama_cpp / "convert_hf_to_gguf.py", "--mmproj", "--outtype", "f32", "--outfile", out, folder]
    environment = os.environ | {"PYTHONPATH": str(llama_cpp / "gguf-py")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def write_clip(path: Path, model: torch.nn.Module) -> None:
    """The tower of LLaVA with the keys and names of llama.cpp's older converter, which keeps no layers after the one that is read."""
    config = model.config.vision_config
    layers = config.num_hidden_layers + model.config.vision_feature_layer + 1
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_string("clip.projector_type", "mlp")
    numbers = dict(image_size=config.image_size, patch_size=config.patch_size, embedding_length=config.hidden_size,
                   feed_forward_length=config.intermediate_size, projection_dim=config.projection_dim,
                   block_count=layers)  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_uint32("clip.vision.attention.head_count", config.num_attention_heads)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.layer_norm_eps)
    writer.add_array("clip.vision.image_mean", MEAN)
    writer.add_array("clip.vision.image_std", DEVIATION)
    writer.add_array("clip.vision.feature_layer", [layers])
    writer.add_bool("clip.use_gelu", False)
    names = {
        r"model\.vision_tower\.(?:vision_model\.)?": "", r"embeddings\.class_embedding": "v.class_embd",
        r"embeddings\.patch_embedding": "v.patch_embd", r"embeddings\.position_embedding": "v.position_embd",
        r"pre_layrnorm": "v.pre_ln", r"encoder\.layers": "v.blk", r"self_attn\.([qkv])_proj": r"attn_\1",
        r"self_attn\.out_proj": "attn_out", r"layer_norm(\d)": r"ln\1",
        # The older converter exchanges these names.
        r"mlp\.fc1": "ffn_down", r"mlp\.fc2": "ffn_up",
        r"model\.multi_modal_projector\.linear_1": "mm.0", r"model\.multi_modal_projector\.linear_2": "mm.2",
    }  # fmt: skip
    for key, value in model.state_dict().items():
        layer = re.search(r"encoder\.layers\.(\d+)", key)
        is_read = ("vision_tower" in key or "projector" in key) and "post_layernorm" not in key and "position_ids" not in key
        if not is_read or layer and int(layer[1]) >= layers:
            continue
        for pattern, name in names.items():
            key = re.sub(pattern, name, key)
        writer.add_tensor(key, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_lfm3(path: Path, model: torch.nn.Module) -> None:
    """The tower of LFM3-VL with the keys and names of llama.cpp, whose converter writes the same."""
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "lfm3vl")
    writer.add_bool("clip.use_silu", True)
    writer.add_string("clip.vision.image_resize_algo", "bicubic")
    numbers = dict(image_size=448, patch_size=config.patch_size, embedding_length=config.hidden_size,
                   feed_forward_length=config.intermediate_size, projection_dim=model.config.text_config.hidden_size,
                   block_count=config.num_hidden_layers, spatial_merge_size=config.spatial_merge_size,
                   image_min_pixels=QWEN_PROCESSOR.size["shortest_edge"], image_max_pixels=QWEN_PROCESSOR.size["longest_edge"])  # fmt: skip
    numbers |= {"attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads}
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.norm_eps)
    writer.add_array("clip.vision.image_mean", MEAN)
    writer.add_array("clip.vision.image_std", DEVIATION)
    names = {
        r"model\.vision_tower\.layers": "v.blk", r"model\.vision_tower\.": "v.", r"operator_norm": "ln1", r"\.ffn_norm": ".ln2",
        r"self_attn\.([qkv])_proj": r"attn_\1", r"self_attn\.([qk])_norm": r"attn_\1_norm", r"self_attn\.out_proj": "attn_out",
        r"conv\.spatial_conv": "conv2d_spatial", r"conv\.(in|out)_proj": r"conv2d_\1_proj",
        r"feed_forward\.w1": "ffn_gate", r"feed_forward\.w3": "ffn_up", r"feed_forward\.w2": "ffn_down",
        r"model\.multi_modal_projector\.layer_norm": "mm.input_norm", r"model\.multi_modal_projector\.linear_1": "mm.0",
        r"model\.multi_modal_projector\.linear_2": "mm.2",
    }  # fmt: skip
    for key, value in model.state_dict().items():
        if "vision_tower" not in key and "projector" not in key:
            continue
        for pattern, name in names.items():
            key = re.sub(pattern, name, key)
        if key == "v.patch_embed.weight":
            frames = value.reshape(-1, 3, 2, config.patch_size, config.patch_size).numpy()
            writer.add_tensor("v.patch_embd.weight", np.ascontiguousarray(frames[:, :, 0]))
            writer.add_tensor("v.patch_embd.weight.1", np.ascontiguousarray(frames[:, :, 1]))
        else:
            writer.add_tensor(key, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_own_tokens(config: dict) -> None:
    """Replaces the tokens of published vocabularies by those of the tiny one."""
    for values in (config, config.get("text_config", {})):
        values.update({key: token for key, token in dict(bos_token_id=1, eos_token_id=2).items() if key in values})


def write_tower(path: Path, vision: Vision, model: torch.nn.Module, tokenizer, llama_cpp: Path) -> None:
    """The file of the tower, and its directory without the language model."""
    with tempfile.TemporaryDirectory() as name:
        # The converter writes the name of the directory into the file.
        folder = Path(name) / f"tiny-{path.parent.name}"
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        with_own_tokens(config)
        vision.changes(config)
        old, new = vision.published
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        weights = {new + name.removeprefix(old) if name.startswith(old) else name: values for name, values in weights.items()}
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        vision.write_preprocessor(folder, vision)
        write_tokenizer(folder, tokenizer, vision)
        if vision.write_file:
            vision.write_file(path, model)
        else:
            convert(folder, path, llama_cpp)
        if vision.sizes:
            add_sizes(path, vision.sizes)
        write_directory(path.parent / "directory", folder, weights, vision.is_whole)


def write_tokenizer(folder: Path, tokenizer, vision: Vision) -> None:
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template(vision.placeholder, vision.part))


OF_ENCODER = r"^(model\.|thinker\.)?(visual|vision_tower|vision_model|embed_vision|vision_embedder|embed_audio|audio_tower|multi_modal_projector|connector|linear_proj|mlp_AR)\."


def stored(name: str, values: torch.Tensor) -> torch.Tensor:
    """In half precision what the GGUF files have in half precision: matrices of language models, and convolutions of audio."""
    is_half = "conv" in name and not re.search("patch|lconv|subsample|vision_tower", name) if re.match(OF_ENCODER, name) else True
    half = values.half() if is_half and values.ndim > 1 else values
    assert torch.equal(half.float(), values), name
    return half


def write_directory(directory: Path, folder: Path, weights: dict[str, torch.Tensor], is_whole: bool) -> None:
    """The encoder of a folder, or the whole model with its tokenizer."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    kept = ["config.json", "preprocessor_config.json", "processor_config.json"]
    for name in kept + ["tokenizer.json", "chat_template.jinja"] * is_whole:
        if (folder / name).exists() and (folder / name).read_text() != "{}\n":
            shutil.copy(folder / name, directory / name)
    weights = {name: stored(name, values) for name, values in weights.items() if is_whole or re.match(OF_ENCODER, name)}
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)


class Seen:
    """A model with an image in its prompt, with the interface that `oracle` expects."""

    def __init__(self, model: torch.nn.Module, vision: Vision, taken: dict, token: int):
        self.model, self.vision, self.taken, self.token = model, vision, taken, token

    def __call__(self, input_ids: torch.Tensor, use_cache: bool):
        marks = {self.vision.marks: (input_ids == self.token).long()} if self.vision.marks_rows else {}
        if self.vision.generates_masks:
            marks["attention_mask"] = self.masks(marks[self.vision.marks])
        return self.model(input_ids=input_ids, use_cache=use_cache, **self.taken, **marks)


    def masks(self, marks: torch.Tensor) -> dict[str, torch.Tensor]:
        config, length = self.model.config, marks.shape[1]
        rows = torch.zeros(1, length, config.get_text_config().hidden_size)
        places = torch.arange(length)[None]
        return self.model.create_masks_for_generate(config, rows, None, None, places, mm_token_type_ids=marks)


@torch.inference_mode()
def rows_of(model: torch.nn.Module, vision: Vision, taken: dict) -> np.ndarray:
    layer = {"vision_feature_layer": -2, "vision_feature_select_strategy": "default", "output_hidden_states": True}
    options = layer if "llava" in type(model).__module__ else {}
    found = model.model.get_image_features(**taken, **options)
    rows = torch.cat([tile.reshape(-1, tile.shape[-1]) for tile in found.pooler_output])
    deep = [torch.cat(list(rows)) for rows in found.deepstack_features] if vision.deep else []
    return torch.cat([rows, *deep], dim=-1).numpy()


def tile_of_patches(patches: torch.Tensor, grid: list[int], merge: int, side: int) -> torch.Tensor:
    """[1, 3, height, width] of patches: line by line, or in the order of merged squares, each with two equal frames."""
    if patches.dim() == 4:
        lines = patches.reshape(grid[1], grid[2], 3, side, side)
        return lines.permute(2, 0, 3, 1, 4).reshape(1, 3, grid[1] * side, grid[2] * side)
    columns, rows = grid[2] // merge, grid[1] // merge
    squares = patches.reshape(rows, columns, merge, merge, 3, 2, side, side)[:, :, :, :, :, 0]
    return squares.permute(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, grid[1] * side, grid[2] * side)


def tile_of_places(patches: torch.Tensor, places: torch.Tensor, side: int) -> torch.Tensor:
    """[1, 3, height, width] of patches line by line, each pixel with its three colors, and their places, -1 after the last one."""
    columns, rows = (places.max(dim=0).values + 1).tolist()
    return patches[: columns * rows].reshape(rows, columns, side, side, 3).permute(4, 0, 2, 1, 3).reshape(
        1, 3, rows * side, columns * side)  # fmt: skip


def processed(vision: Vision, size: tuple[int, int]) -> tuple[dict, torch.Tensor, str]:
    """What the model takes, the tiles in its colors, and the text."""
    returned = vision.processor(images=[image(*size)], return_tensors="pt")
    pixels = returned["pixel_values"].float()
    also = (vision.also_taken,) if isinstance(vision.also_taken, str) else vision.also_taken
    taken = {"pixel_values": pixels} | {key: returned[key] for key in also}
    if vision.also_taken == "image_grid_thw":
        tiles = tile_of_patches(pixels, returned["image_grid_thw"][0].tolist(), vision.merge, TOWER["patch_size"])
    elif vision.also_taken == "image_position_ids":
        tiles = tile_of_places(pixels[0], returned["image_position_ids"][0], vision.patch)
    elif not vision.keeps_colors:
        tiles = pixels[:0]
    else:
        tiles = pixels.reshape(-1, *pixels.shape[-3:])
    return taken, tiles, vision.expanded(returned, vision)


def digits(tile: torch.Tensor, vision: Vision) -> str:
    mean, deviation = (np.array(values)[:, None, None] for values in vision.colors)
    levels = 255 * (tile.numpy() * deviation + mean)
    assert np.abs(levels - levels.round()).max() < 1e-3
    return levels.round().astype(np.uint8).tobytes().hex()


def generate(name: str, vision: Vision, llama_cpp: Path) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    folder = families.FIXTURES / "vision" / name
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.byte_level(vocabulary.SPECIAL + vision.special, SIZE)
    token = tokenizer.token_to_id(vision.row_token)
    config, text_state = write_text(folder / "text.gguf", name, vision, rng)
    model = whole_model(vision, config, text_state, token, rng)
    write_tower(folder / "mmproj.gguf", vision, model, tokenizer, llama_cpp)
    if vision.rounded:
        store_rounded(folder / "mmproj.gguf", folder / "mmproj-q8_0.gguf")
    images = []
    for index, size in enumerate(vision.images):
        taken, tiles, text = processed(vision, size)
        is_first = index == 0
        rows = rows_of(model, vision, taken).reshape(-1).tolist() if is_first or len(tiles) == 1 and index == 1 else []
        kept = tiles if is_first or len(tiles) == 1 else []
        images.append(dict(width=size[0], height=size[1], text=text, tiles=[digits(tile, vision) for tile in kept],
                           rows=[oracle.rounded(value) for value in rows]))  # fmt: skip
    taken, _, text = processed(vision, vision.images[0])
    tokens = tokenizer.encode(PROMPT.format(text)).ids
    seen = Seen(model, vision, taken, token)
    mean, deviation = (np.array(values) for values in vision.colors)
    if vision.doubles_colors:
        mean, deviation = mean + deviation / 2, deviation / 2
    oracle.write_json(folder / "expected.json", {
        "oracle": f"transformers {transformers.__version__} {type(model).__name__}, float32",
        "sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.gguf"))},
        "placeholder": vision.placeholder,
        "row_token": vision.row_token,
        "row_token_id": token,
        "width": config.hidden_size * (1 + vision.deep),
        "rounded": ["mmproj-q8_0.gguf"] if vision.rounded else [],
        "image_mean": mean.tolist(),
        "image_std": deviation.tolist(),
        "patch": vision.patch,
        "merge": vision.merge,
        "rows_see_each_other": vision.sees_each_other,
        "images": images,
        "prompt": PROMPT.format(vision.placeholder),
        "prompts": [oracle.prompt_case(seen, tokens, CONTINUATION)],
    })  # fmt: skip
    print(f"{name:12} {sum(file.stat().st_size for file in folder.rglob('*')) / 1024:7.0f} KiB", flush=True)


def main(llama_cpp: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    hybrids.compute_serially()
    for name in names or MODELS:
        generate(name, MODELS[name], llama_cpp)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
