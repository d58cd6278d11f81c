"""Writes tiny checkpoints with a layer for multi-token prediction as GGUF files, and the values that torch computes with them.

    python tests/generate/prediction.py [NAME ...]      (needs torch, transformers, gguf)

Writes `tests/fixtures/prediction/NAME.gguf` and `NAME.json`, and the directory `NAME` of the same weights. transformers has no class for these layers; they consist of
transformers' decoder layer, norms and a projection (DeepSeek-V3, arXiv:2412.19437, section 2.2; vLLM computes the same). The
models are trained on texts that follow rules with exceptions, so that the layer often predicts what the model generates.
"""

import copy
import hashlib
import shutil
import sys
from dataclasses import dataclass

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers

import families
import hybrids
import oracle
import published
from checkpoint import Checkpoint, sizes

STEPS, BATCH, LENGTH = 400, 8, 96
LETTERS = np.frombuffer(b"abcdefghijklmnop ", dtype=np.uint8).astype(np.int64)
PROMPT_LENGTHS = (5, 37, 90)
DRAFTED = 4


@dataclass(frozen=True)
class Predicting:
    """A checkpoint whose last layer predicts one more token, and the tensors that this layer has of its own."""

    checkpoint: Checkpoint
    own_embedding: bool = False
    own_head: bool = False
    # The name of its last norm in a file.
    norm: str = "nextn.shared_head_norm"


SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3)
CHECKPOINTS = {
    "qwen35": Predicting(Checkpoint(hybrids.QWEN35, hybrids.delta(
        rope_parameters=hybrids.SECTIONS, num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "full_attention"]))),
    "glm4moe": Predicting(Checkpoint(families.GLM4_MOE, families.GLM4_MOE_SIZES | SMALL), own_head=True),
    "bailingmoe3": Predicting(Checkpoint(hybrids.LING3, hybrids.LING3_SIZES | dict(
        num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "full_attention"])), norm="layer_output_norm"),
    "deepseek3": Predicting(
        Checkpoint(families.DEEPSEEK3, families.DEEPSEEK3_SIZES | SMALL), own_embedding=True, own_head=True),
}  # fmt: skip

LAYER = dict(eh_proj="eh_proj", enorm="enorm", hnorm="hnorm", shared_head_norm="shared_head.norm",
             shared_head_head="shared_head.head", embed_tokens="embed_tokens")  # fmt: skip
PART = dict(eh_proj="fc", enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", shared_head_norm="norm")
LING3 = dict(eh_proj="eh_proj", enorm="enorm", hnorm="hnorm", layer_output_norm="final_layernorm")
# What directories put before the layer, and the names of its own tensors there.
PARTS = {"qwen35": ("mtp.", PART), "glm4moe": ("", LAYER), "deepseek3": ("", LAYER), "bailingmoe3": ("", LING3)}


class Predictor(torch.nn.Module):
    """A model without its last layer, and that layer with what it needs to predict one more token."""

    def __init__(self, predicting: Predicting, config):
        super().__init__()
        self.whole = predicting.checkpoint.family.model(config).to(torch.float32)
        layers = self.whole.model.layers
        self.trunk = copy.copy(self.whole.model)
        self.trunk._modules = dict(self.whole.model._modules, layers=layers[:-1])
        self.trunk.config = self.config_of(config, slice(None, -1))
        self.block = copy.copy(self.whole.model)
        norm, hidden = type(self.whole.model.norm), config.hidden_size
        self.shared_head_norm, self.enorm, self.hnorm = (norm(hidden, config.rms_norm_eps) for _ in range(3))
        self.block._modules = dict(self.whole.model._modules, layers=layers[-1:], norm=self.shared_head_norm)
        self.block.config = self.config_of(config, slice(-1, None))
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        embedding, head = self.whole.model.embed_tokens, self.whole.lm_head
        self.embed_tokens = copy.deepcopy(embedding) if predicting.own_embedding else embedding
        self.shared_head_head = copy.deepcopy(head) if predicting.own_head else head

    @staticmethod
    def config_of(config, layers: slice):
        own = copy.deepcopy(config)
        own.num_hidden_layers = len(range(config.num_hidden_layers)[layers])
        for name in ("layer_types", "mlp_layer_types"):
            if kinds := getattr(config, name, None):
                setattr(own, name, kinds[layers])
        return own

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, hidden]: the values after the last norm of the model."""
        return self.trunk(input_ids=tokens, use_cache=False).last_hidden_state

    def predict(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's own hidden values: row `i` joins the hidden values at `i` and token `i + 1`."""
        joined = torch.cat([self.enorm(self.embed_tokens(tokens[:, 1:])), self.hnorm(hidden)], dim=-1)
        return self.block(inputs_embeds=self.eh_proj(joined), use_cache=False).last_hidden_state

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Logits of the tokens after each position, of those one further, and of those two further from the layer's own values."""
        hidden = self.hidden(tokens)
        own = self.predict(tokens, hidden[:, :-1])
        further = self.predict(tokens[:, 1:], own[:, :-1])
        return [self.whole.lm_head(hidden), self.shared_head_head(own), self.shared_head_head(further)]


def texts(rng: np.random.Generator, count: int, length: int) -> torch.Tensor:
    """Texts in which most letters follow from the two before them, always by the same rule."""
    rule = np.random.default_rng(0).integers(0, len(LETTERS), size=(len(LETTERS), len(LETTERS)))
    rows = np.empty((count, length), dtype=np.int64)
    rows[:, :2] = rng.integers(0, len(LETTERS), size=(count, 2))
    for position in range(2, length):
        free = rng.integers(0, len(LETTERS), size=count)
        ruled = rule[rows[:, position - 2], rows[:, position - 1]]
        rows[:, position] = np.where(rng.random(count) < 0.1, free, ruled)
    return torch.from_numpy(LETTERS[rows])


def train(model: Predictor, rng: np.random.Generator) -> float:
    """Trains all outputs; returns the last loss of the layer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loss_of = torch.nn.functional.cross_entropy
    for _ in range(STEPS):
        tokens = texts(rng, BATCH, LENGTH)
        losses = [
            loss_of(logits[:, :-1].flatten(0, 1), tokens[:, 1 + index :].flatten())
            for index, logits in enumerate(model(tokens))
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        schedule.step()
    return losses[1].item()


@torch.inference_mode()
def prompt_case(model: Predictor, tokens: torch.Tensor) -> dict:
    """Log-probabilities of each token by the layer, and a draft whose tokens follow from the layer's own hidden values."""
    hidden, draft = model.hidden(tokens)[:, :-1], []
    rows = torch.log_softmax(model.shared_head_head(model.predict(tokens, hidden)).double(), dim=-1)[0]
    extended = tokens
    for _ in range(DRAFTED):
        own = model.predict(extended, hidden)
        last = torch.log_softmax(model.shared_head_head(own[:, -1:]).double(), dim=-1)[0, 0]
        token = int(last.argmax())
        draft.append([token, oracle.rounded(float(last[token]))])
        extended = torch.cat([extended, torch.tensor([[token]])], dim=1)
        hidden = torch.cat([hidden, own[:, -1:]], dim=1)
    known = tokens[0].tolist()
    return {
        "tokens": known,
        "logprobs": [oracle.rounded(float(rows[i, known[i + 2]])) for i in range(len(known) - 2)],
        "draft": draft,
    }


def generate(name: str, predicting: Predicting) -> None:
    checkpoint = predicting.checkpoint
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    config = checkpoint.family.config(**checkpoint.config, attn_implementation="eager")
    model = Predictor(predicting, config)
    loss = train(model, rng)
    hybrids.compute_serially()

    folder = families.FIXTURES / "prediction"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[checkpoint.family.architecture])
    families.write_metadata(writer, name, checkpoint, config)
    writer.add_nextn_predict_layers(1)
    checkpoint.family.write_vocabulary(writer)
    state = {key: value.detach() for key, value in model.whole.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    families.write_weights(writer, checkpoint, config, {key: tuple(value.shape) for key, value in state.items()}, rng,
                           lambda key, shape: state[key].numpy())  # fmt: skip
    write_own_tensors(writer, model, predicting, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model.eval()
    oracle.write_json(path.with_suffix(".json"), {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} {checkpoint.family.model.__name__} and its layer, float32",
        "prompts": [prompt_case(model, texts(rng, 1, length)) for length in PROMPT_LENGTHS],
    })  # fmt: skip
    print(f"{name:20} {path.stat().st_size / 1024:7.0f} KiB, loss of the layer {loss:.2f}", flush=True)


def write_directory(name: str, predicting: Predicting) -> None:
    """Writes the directory of a file, with the names that the publishers of such models use."""
    checkpoint, path = predicting.checkpoint, families.FIXTURES / "prediction" / f"{name}.gguf"
    config, shapes = families.layers_of(checkpoint)
    state = families.read_weights(path, checkpoint, config, shapes)
    last = config.num_hidden_layers - 1
    part, names = PARTS[name]
    layer = f"{part}layers.0." if part else f"model.layers.{last}."
    renamed = {key.replace(f"model.layers.{last}.", layer): value for key, value in state.items()}
    renamed = published.ling3_weights(renamed) if name == "bailingmoe3" else renamed
    layout = checkpoint.family.norm_layout
    for tensor in gguf.GGUFReader(path).tensors:
        own = tensor.name.removeprefix(f"blk.{last}.").removeprefix("nextn.").removesuffix(".weight")
        if own not in names:
            continue
        values = tensor.data.reshape(tensor.shape[::-1])
        values = layout.out_of_file(values) if own.endswith("norm") else values
        before = part if part else layer
        renamed[f"{before}{names[own]}.weight"] = torch.from_numpy(np.ascontiguousarray(values))
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    safetensors.torch.save_file(renamed, folder / "model.safetensors")
    own = Predictor.config_of(config, slice(None, -1))
    own.architectures = [checkpoint.family.model.__name__]
    own.save_pretrained(folder)


def write_own_tensors(writer: gguf.GGUFWriter, model: Predictor, predicting: Predicting, config) -> None:
    layer = f"blk.{config.num_hidden_layers - 1}"
    prefix = f"{layer}.nextn"
    layout = predicting.checkpoint.family.norm_layout
    names = dict(enorm="nextn.enorm", hnorm="nextn.hnorm", shared_head_norm=predicting.norm)
    for name, stored in names.items():
        writer.add_tensor(f"{layer}.{stored}.weight", layout.into_file(getattr(model, name).weight.detach().numpy()))
    matrices = {"eh_proj": True, "embed_tokens": predicting.own_embedding, "shared_head_head": predicting.own_head}
    for name, is_own in matrices.items():
        if is_own:
            writer.add_tensor(f"{prefix}.{name}.weight", getattr(model, name).weight.detach().numpy())


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or CHECKPOINTS:
        generate(name, CHECKPOINTS[name])
        write_directory(name, CHECKPOINTS[name])
