"""Writes tiny draft models of EAGLE-3 and the model that they draft for, and the values that torch computes with them.

    python tests/generate/eagle3.py      (needs torch, transformers, gguf, and speculators for its layer)

Writes `tests/fixtures/eagle3/target.gguf`, the directories `specforge` and `speculators` as both projects publish draft models,
`specforge.gguf` as llama.cpp converts it, and the expected values of both. The layer is that of the package `speculators`. All models
are trained on texts that follow rules with exceptions, so that the draft models often predict what the model generates.
"""

import functools
import importlib.util
import json
import shutil
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Format
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

import families
import hybrids
import oracle
import vocabulary
from checkpoint import Checkpoint, rope, sizes
from prediction import BATCH, DRAFTED, LENGTH, LETTERS, PROMPT_LENGTHS, texts
from weights import interleaved_rotation

STEPS = 400
FOLDER = families.FIXTURES / "eagle3"
TARGET = Checkpoint(
    families.LLAMA,
    sizes(hidden_size=32, intermediate_size=48, num_hidden_layers=8, tie_word_embeddings=True, rope_parameters=rope()),
    formats={"*": Format.F16},
)


@dataclass(frozen=True)
class Draft:
    """A draft model: its sizes, and what of the model it computes with."""

    # The layers whose inputs it reads; 0 is the embedding.
    layers: tuple[int, ...]
    hidden_size: int
    norm_before_residual: bool = False
    own_embedding: bool = False
    # The tokens that it drafts; all if empty.
    tokens: tuple[int, ...] = ()


DRAFTS = {
    "specforge": Draft(layers=(2, 4, 5), hidden_size=32, tokens=(3, *sorted(LETTERS.tolist()), 500)),
    "speculators": Draft(layers=(1, 4, 8), hidden_size=24, norm_before_residual=True, own_embedding=True),
}


@functools.cache
def first_layer() -> type:
    """The class of the layer of `speculators`. Its package imports what only training needs, so that the file is imported without it."""
    root = Path(importlib.util.find_spec("speculators").submodule_search_locations[0])
    for name in ("speculators", "speculators.models", "speculators.models.eagle3"):
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    module = importlib.import_module("speculators.models.eagle3.model_definitions")
    return module.LlamaDecoderEagle3FirstLayer


class Target(torch.nn.Module):
    """A model that also returns the residuals between its layers."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model
        self.residuals: list[torch.Tensor] = []
        for part in [*model.model.layers, model.model.norm]:
            part.register_forward_pre_hook(lambda _, inputs: self.residuals.append(inputs[0]))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.residuals.clear()
        return self.model(input_ids=tokens, use_cache=False).logits


class DraftModel(torch.nn.Module):
    def __init__(self, draft: Draft, target: Target):
        super().__init__()
        self.draft, width, of_target = draft, draft.hidden_size, target.model.config
        self.config = transformers.LlamaConfig(
            vocab_size=of_target.vocab_size, hidden_size=width, intermediate_size=40, num_hidden_layers=1, head_dim=8,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-3, max_position_embeddings=128,
            rope_parameters=rope(theta=20000.0), attn_implementation="eager")  # fmt: skip
        self.fc = torch.nn.Linear(len(draft.layers) * of_target.hidden_size, width, bias=False)
        self.layer = first_layer()(self.config, 0, draft.norm_before_residual)
        self.norm = LlamaRMSNorm(width, self.config.rms_norm_eps)
        self.n_drafts = len(draft.tokens) or of_target.vocab_size
        self.lm_head = torch.nn.Linear(width, self.n_drafts, bias=False)
        shared = [target.model.model.embed_tokens]
        self.embed = (lambda tokens: self.embed_tokens(tokens)) if draft.own_embedding else (lambda tokens: shared[0](tokens))
        if draft.own_embedding:
            self.embed_tokens = torch.nn.Embedding(of_target.vocab_size, width)
        self.rotary = LlamaRotaryEmbedding(self.config)

    def of_target(self, target: Target, tokens: torch.Tensor) -> torch.Tensor:
        target(tokens)
        return self.fc(torch.cat([target.residuals[layer] for layer in self.draft.layers], dim=-1))

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, rows, hidden]: what the next rows read. Row `i` has the hidden values at `i` and token `i + 1`."""
        rows = hidden.shape[1]
        positions = torch.arange(rows)[None]
        mask = torch.full((rows, rows), torch.finfo(torch.float32).min).triu(1)[None, None]
        both = torch.cat([self.embed(tokens[:, 1:]), hidden], dim=-1)
        return self.layer(both, attention_mask=mask, position_ids=positions, position_embeddings=self.rotary(both, positions))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(hidden))

    def index_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of tokens."""
        if not self.draft.tokens:
            return tokens
        return torch.searchsorted(torch.tensor(self.draft.tokens), tokens)

    def token_of(self, index: int) -> int:
        return self.draft.tokens[index] if self.draft.tokens else index


def train(parameters, losses) -> float:
    optimizer = torch.optim.AdamW(parameters, lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss = losses()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


loss_of = torch.nn.functional.cross_entropy


def write_target(rng: np.random.Generator) -> Target:
    config = TARGET.family.config(**TARGET.config, attn_implementation="eager")
    model = TARGET.family.model(config).to(torch.float32)

    def losses():
        tokens = texts(rng, BATCH, LENGTH)
        return loss_of(model(input_ids=tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    loss = train(model.parameters(), losses)
    path = FOLDER / "target.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    families.write_metadata(writer, "target", TARGET, config)
    TARGET.family.write_vocabulary(writer)
    state = {key: value.detach() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    stored = families.write_weights(writer, TARGET, config, shapes, rng, lambda key, shape: state[key].numpy())
    close(writer)
    print(f"target: {path.stat().st_size / 1024:.0f} KiB, loss {loss:.2f}", flush=True)
    target = Target(families.oracle_model(TARGET, config, stored))
    return target.requires_grad_(False)


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train_draft(model: DraftModel, target: Target, rng: np.random.Generator) -> float:
    def losses():
        tokens = texts(rng, BATCH, LENGTH)
        own = model(tokens, model.of_target(target, tokens)[:, :-1])
        further = model(tokens[:, 1:], own[:, :-1])
        wanted = model.index_of(tokens)
        of = lambda hidden, first: loss_of(model.logits(hidden)[:, :-1].flatten(0, 1), wanted[:, first:].flatten())
        return of(own, 2) + of(further, 3)

    return train(model.parameters(), losses)


@torch.inference_mode()
def prompt_case(model: DraftModel, target: Target, tokens: torch.Tensor) -> dict:
    """Log-probabilities of each token by the draft model, and a draft whose tokens follow from its own hidden values."""
    hidden, draft, extended = model.of_target(target, tokens)[:, :-1], [], tokens
    rows = torch.log_softmax(model.logits(model(tokens, hidden)).double(), dim=-1)[0]
    for _ in range(DRAFTED):
        own = model(extended, hidden)
        last = torch.log_softmax(model.logits(own[:, -1:]).double(), dim=-1)[0, 0]
        index = int(last.argmax())
        draft.append([model.token_of(index), oracle.rounded(float(last[index]))])
        extended = torch.cat([extended, torch.tensor([[model.token_of(index)]])], dim=1)
        hidden = torch.cat([hidden, own[:, -1:]], dim=1)
    known, logits = tokens[0].tolist(), model.index_of(tokens)[0].tolist()
    logprobs = [oracle.rounded(float(rows[i, logits[i + 2]])) for i in range(len(known) - 2)]
    return {"tokens": known, "logprobs": logprobs, "draft": draft}


def distances(draft: Draft) -> torch.Tensor:
    return torch.tensor(draft.tokens) - torch.arange(len(draft.tokens))


def write_directory(name: str, model: DraftModel) -> None:
    """Writes the directory with the names and the config of the project `name`."""
    draft, folder = model.draft, FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    layer = "midlayer" if name == "specforge" else "layers.0"
    state = {key.replace("layer.", f"{layer}.", 1) if key.startswith("layer.") else key: value.contiguous()
             for key, value in model.state_dict().items()}  # fmt: skip
    of_layer = {key: getattr(model.config, key) for key in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "num_attention_heads",
        "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "hidden_act")}  # fmt: skip
    of_layer |= {"model_type": "llama", "rope_theta": 20000.0}
    if name == "specforge":
        state["d2t"] = distances(draft)
        state["t2d"] = torch.zeros(model.config.vocab_size, dtype=torch.bool)
        state["t2d"][list(draft.tokens)] = True
        outputs = [layer - 1 for layer in draft.layers]
        eagle = {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True}
        config = of_layer | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": model.n_drafts,
                             "eagle_config": eagle}  # fmt: skip
    else:
        state = {key: value.to(torch.bfloat16) for key, value in state.items()}
        config = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "transformer_layer_config": of_layer, "draft_vocab_size": model.n_drafts, "target_hidden_size": 32,
            "norm_before_residual": draft.norm_before_residual,
            "eagle_aux_hidden_state_layer_ids": list(draft.layers),
        }  # fmt: skip
    safetensors.torch.save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def write_file(name: str, model: DraftModel) -> None:
    """Writes the file that llama.cpp converts the directory to."""
    config = model.config
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", "eagle3")
    writer.add_name(f"Tiny {name}")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(1)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(20000.0)
    writer.add_array("eagle3.target_layers", list(model.draft.layers))
    writer.add_uint32("eagle3.target_hidden_size", 32)
    writer.add_bool("eagle3.norm_before_residual", model.draft.norm_before_residual)
    vocabulary.write_byte_level(writer)
    names = {
        "fc.weight": "fc.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
        "layer.input_layernorm.weight": "blk.0.attn_norm.weight", "layer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
        "layer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        **{f"layer.self_attn.{part}_proj.weight": f"blk.0.attn_{stored}.weight"
           for part, stored in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))},
        **{f"layer.mlp.{part}_proj.weight": f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")},
    }  # fmt: skip
    state = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    for key, stored in names.items():
        values = state[key]
        if ".q_proj." in key or ".k_proj." in key:
            values = interleaved_rotation(values.shape[0] // config.head_dim).into_file(values)
        writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.add_tensor("d2t", np.array(model.draft.tokens, dtype=np.int64), raw_dtype=Format.I64)
    close(writer)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    transformers.logging.set_verbosity_error()
    FOLDER.mkdir(parents=True, exist_ok=True)
    hybrids.compute_serially()
    target = write_target(rng)
    for name, draft in DRAFTS.items():
        model = DraftModel(draft, target)
        loss = train_draft(model, target, rng)
        if name == "speculators":
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
        write_directory(name, model)
        if name == "specforge":
            write_file(name, model)
        oracle.write_json(FOLDER / f"{name}.json", {
            "oracle": f"speculators LlamaDecoderEagle3FirstLayer, transformers {transformers.__version__}, float32",
            "prompts": [prompt_case(model, target, texts(rng, 1, length)) for length in PROMPT_LENGTHS],
        })  # fmt: skip
        print(f"{name}: loss {loss:.2f}", flush=True)


if __name__ == "__main__":
    main()
