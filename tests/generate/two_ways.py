"""Decoders whose rows see all rows of their text, as those of some embedding models do."""

import torch
import transformers


class Qwen2Model(transformers.Qwen2Model):
    """Qwen 2 without the causal mask."""

    def forward(self, input_ids: torch.Tensor, **options):
        length = input_ids.shape[1]
        return super().forward(input_ids=input_ids, attention_mask=torch.zeros(1, 1, length, length), **options)
