"""The decoders of models that also see images, as causal language models over text."""

from types import SimpleNamespace

import torch
import transformers


def causal(name: str, finish=lambda config, logits: logits) -> type:
    """A language model around transformers' class NAMETextModel, with the interface of its causal classes. `finish` is
    what the model does with logits."""
    decoder = getattr(transformers, f"{name}TextModel")

    class Causal(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.model, self.config = decoder(config), config
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.is_tied = config.tie_word_embeddings
            self.finish = lambda logits: finish(config, logits)

        def tie_weights(self) -> None:
            if self.is_tied:
                self.lm_head.weight = self.model.embed_tokens.weight

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            rows = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
            return SimpleNamespace(logits=self.finish(self.lm_head(rows)))

    Causal.__name__ = decoder.__name__
    return Causal
