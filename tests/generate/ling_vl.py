"""Ling 3 VL from classes of transformers, which has none for it: the tower of Qwen 3 VL without the matrices of its merger, a
projector, and the language model of Ling 3 with pairs of neighbours that rotate by columns and rows."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import safetensors.torch
import torch
import transformers
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

import hybrids
import published

# Pairs that rotate by the time, the row and the column.
SECTIONS = [2, 1, 1]


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    hybrids.write_ling3_keys(writer, config)
    writer.add_rope_dimension_sections([*SECTIONS, 0])


LING3_VL = replace(hybrids.LING3, write_keys=write_keys, rules=lambda config: hybrids.ling3_rules(config, more=3.0))


class Rotation(torch.nn.Module):
    """The cosines and sines of pairs of which each section rotates by another position: `positions`, [3, rows]."""

    def __init__(self, frequencies: torch.Tensor):
        super().__init__()
        self.frequencies, self.positions = frequencies, None

    def forward(self, rows: torch.Tensor, _) -> tuple[torch.Tensor, torch.Tensor]:
        axis = torch.repeat_interleave(torch.arange(3), torch.tensor(SECTIONS))
        angles = self.positions[axis].T.float() * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)[None]
        return angles.cos(), angles.sin()


class LingVl(transformers.BailingHybridForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        tower = transformers.Qwen3VLConfig(vision_config=config.tower).vision_config
        tower._attn_implementation = "eager"
        self.model.visual = Qwen3VLVisionModel(tower)
        merged = tower.hidden_size * tower.spatial_merge_size**2
        self.model.visual.merger.linear_fc1 = self.model.visual.merger.act_fn = torch.nn.Identity()
        self.model.visual.merger.linear_fc2 = torch.nn.Identity()
        self.linear_proj = torch.nn.Sequential(
            torch.nn.Linear(merged, config.hidden_size), torch.nn.GELU(), torch.nn.Linear(config.hidden_size, config.hidden_size))
        self.model.rotary_emb = Rotation(self.model.rotary_emb.inv_freq)
        self.model.get_image_features = self.image_features

    def image_features(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> SimpleNamespace:
        merged = self.model.visual(pixel_values, grid_thw=image_grid_thw).pooler_output
        return SimpleNamespace(pooler_output=[self.linear_proj(merged)])

    def forward(self, input_ids, use_cache, pixel_values=None, image_grid_thw=None, **_):
        is_row = input_ids[0] == self.config.image_token_id
        rows = self.model.embed_tokens(input_ids).clone()
        rows[0, is_row] = self.image_features(pixel_values, image_grid_thw).pooler_output[0]
        self.model.rotary_emb.positions = positions(is_row, (image_grid_thw[0] // 2).tolist()[1:])
        return super().forward(inputs_embeds=rows, use_cache=use_cache)

    def save_pretrained(self, folder: Path) -> None:
        """In the layout of the publisher."""
        self.config.save_pretrained(folder)
        text = json.loads((folder / "config.json").read_text())
        tower, token = text.pop("tower"), text.pop("image_token_id")
        config = dict(
            architectures=["BailingMoeV3VLForConditionalGeneration"], model_type="bailing_moe_v3_vl", image_token_id=token,
            mrope_section=SECTIONS, norm_query_embeds=False, tie_word_embeddings=False, text_config=text, vision_config=tower)
        (folder / "config.json").write_text(json.dumps(config))
        weights = {name: values.contiguous() for name, values in published.ling3_weights(self.state_dict()).items()}
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def positions(is_row: torch.Tensor, grid: list[int]) -> torch.Tensor:
    """[3, tokens]: the positions of a prompt with the rows of one image, a grid of rows and columns."""
    first, count = int(is_row.nonzero()[0]), int(is_row.sum())
    places = torch.arange(count)
    of_image = first + torch.stack([0 * places, places // grid[1], places % grid[1]])
    after = torch.arange(len(is_row) - first - count) + first + max(grid)
    return torch.cat([torch.arange(first).expand(3, -1), of_image, after.expand(3, -1)], dim=1)


def config(tower: dict):
    def with_tower(text, token: int):
        text.tower, text.image_token_id = tower | dict(model_type="qwen3_moe_vit", disable_merger_proj=True), token
        return text

    return with_tower
