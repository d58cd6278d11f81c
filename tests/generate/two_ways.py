"""Decoders whose rows see all rows of their text, as those of some embedding models do."""

import torch
import transformers


def without_causal_mask(base: type) -> type:
    """A decoder of transformers without the causal mask."""

    class Decoder(base):
        def forward(self, input_ids: torch.Tensor, **options):
            length = input_ids.shape[1]
            return super().forward(input_ids=input_ids, attention_mask=torch.zeros(1, 1, length, length), **options)

    Decoder.__name__ = base.__name__
    return Decoder


Qwen2Model = without_causal_mask(transformers.Qwen2Model)
LlamaModel = without_causal_mask(transformers.LlamaModel)
