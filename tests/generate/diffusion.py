"""Writes a tiny checkpoint that generates blocks of tokens as a GGUF file, and the blocks that transformers generates with it.

    python tests/generate/diffusion.py      (needs torch, transformers, gguf)

Writes `tests/fixtures/diffusion/diffusion-gemma.gguf` and `.json`, and the directory `diffusion-gemma` of the same weights. The
model is trained on texts that follow a rule, so that blocks become certain after some steps. Where transformers draws random
numbers, it gets those that Cuelight draws for the same seed (`src/sample/denoise.rs`).
"""

import copy
import hashlib
import shutil

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as diffusion_gemma

import families
import oracle
import parts
import vocabulary
from checkpoint import Checkpoint, Family, sizes

NAME = "diffusion-gemma"
CANVAS, MAX_STEPS, BLOCKS = 16, 12, 3
STEPS, BATCH, PROMPT_LENGTHS, SEEDS = 900, 16, (5, 37, 90), (1, 2)
LETTERS = np.arange(300, 317)
MASK = (1 << 64) - 1


def write_keys(writer: gguf.GGUFWriter, config) -> None:
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    families.write_expert_counts(writer, config.num_experts, config.top_k_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_causal_attention(False)
    writer.add_uint32("diffusion.canvas_length", CANVAS)
    writer.add_uint32("diffusion.eb_max_steps", MAX_STEPS)


FAMILY = Family(
    gguf.MODEL_ARCH.GEMMA4,
    diffusion_gemma.DiffusionGemmaForBlockDiffusion,
    transformers.DiffusionGemmaTextConfig,
    vocabulary.write_sentencepiece,
    write_keys=write_keys,
    write_heads=families.write_unequal_heads,
    rules=lambda config: parts.GEMMA4,
)
CHECKPOINT = Checkpoint(FAMILY, sizes(
    num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], head_dim=16, global_head_dim=32,
    num_global_key_value_heads=1, sliding_window=24, tie_word_embeddings=True, num_experts=6, top_k_experts=2,
    intermediate_size=64, moe_intermediate_size=16, final_logit_softcapping=30.0,
))  # fmt: skip
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
              head_dim=16, global_head_dim=16, patch_size=4)  # fmt: skip


def configuration():
    text = transformers.DiffusionGemmaTextConfig(**CHECKPOINT.config)
    vision = transformers.AutoConfig.for_model("gemma4_vision", **VISION)
    config = transformers.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
    config._attn_implementation = "eager"
    config.text_config._attn_implementation = "eager"
    return config


def texts(rng: np.random.Generator, count: int, length: int) -> torch.Tensor:
    """Texts in which most letters follow from the two before them, always by the same rule."""
    rule = np.random.default_rng(0).integers(0, len(LETTERS), size=(len(LETTERS), len(LETTERS)))
    rows = np.empty((count, length), dtype=np.int64)
    rows[:, :2] = rng.integers(0, len(LETTERS), size=(count, 2))
    for position in range(2, length):
        free = rng.integers(0, len(LETTERS), size=count)
        ruled = rule[rows[:, position - 2], rows[:, position - 1]]
        rows[:, position] = np.where(rng.random(count) < 0.04, free, ruled)
    return torch.from_numpy(LETTERS[rows])


def train(model, rng: np.random.Generator) -> float:
    """Trains the model to predict blocks from noise, half of the time with what it predicted before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        before = int(rng.integers(2, 60))
        tokens = texts(rng, BATCH, before + CANVAS)
        block = tokens[:, before:]
        noise = torch.from_numpy(rng.integers(0, vocabulary.SIZE, size=block.shape))
        is_noise = torch.from_numpy(rng.random(block.shape) < rng.random((BATCH, 1)))
        canvas = torch.where(is_noise, noise, block)
        conditioning = None
        if rng.random() < 0.5:
            with torch.no_grad():
                conditioning = model(input_ids=tokens[:, :before], decoder_input_ids=canvas).logits / 0.6
        logits = model(input_ids=tokens[:, :before], decoder_input_ids=canvas, self_conditioning_logits=conditioning).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), block.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def random_bits(seed: int, position: int) -> int:
    return mix(mix((seed + 0x9E3779B97F4A7C15) & MASK) ^ ((position * 0xD1B54A32D192ED03) & MASK))


class Draws:
    """The random numbers of Cuelight, in place of torch's."""

    def __init__(self, seed: int, position: int):
        self.seed, self.position, self.steps, self.trace = seed, position, 0, []

    def rows(self, purpose: int) -> list[int]:
        stream = random_bits(self.seed, self.steps << 1 | purpose)
        return [random_bits(stream, self.position + row) for row in range(CANVAS)]

    def randint(self, low, high, size, device=None):
        """The tokens of a canvas before its next step."""
        return torch.tensor([[bits * high >> 64 for bits in self.rows(0)]])

    def multinomial(self, probabilities, num_samples):
        """The first token at which the sum of probabilities exceeds a random share."""
        shares = torch.tensor([bits / 2**64 for bits in self.rows(1)], dtype=torch.float64)
        sums = probabilities.double().cumsum(dim=-1)
        self.steps += 1
        return (sums > shares[:, None] * sums[:, -1:]).int().argmax(dim=-1, keepdim=True)


@torch.inference_mode()
def generated(model, prompt: torch.Tensor, seed: int) -> dict:
    """The blocks that transformers generates with Cuelight's random numbers, and the number of steps of each."""
    draws = Draws(seed, prompt.shape[1])
    steps = []
    finalize = type(model)._finalize_canvas

    def end_of_block(**arguments):
        steps.append(draws.steps)
        draws.steps, draws.position = 0, draws.position + CANVAS
        return finalize(**arguments)

    model._finalize_canvas = end_of_block
    randint, multinomial, torch.randint, torch.multinomial = torch.randint, torch.multinomial, draws.randint, draws.multinomial
    try:
        output = model.generate(prompt, max_new_tokens=BLOCKS * CANVAS, max_denoising_steps=MAX_STEPS)
    finally:
        torch.randint, torch.multinomial = randint, multinomial
        del model._finalize_canvas
    return {"seed": seed, "tokens": output.sequences[0, prompt.shape[1] :].tolist(), "steps": steps}


@torch.inference_mode()
def rows_case(model, prompt: torch.Tensor, rng: np.random.Generator) -> list[dict]:
    """Two steps of one canvas, the second with the logits of the first: the statistics of its rows."""
    conditioning, steps = None, []
    canvas = torch.from_numpy(rng.integers(0, vocabulary.SIZE, size=(1, CANVAS)))
    table = model.model.decoder.embed_tokens
    for temperature in (0.8, 0.5):
        logits = model(input_ids=prompt, decoder_input_ids=canvas, self_conditioning_logits=conditioning).logits
        conditioning = logits / temperature
        probabilities = torch.softmax(conditioning.double(), dim=-1)[0]
        means = probabilities @ table.weight.double() * table.embed_scale.double()
        best = logits[0].sort(dim=-1, descending=True)
        steps.append({
            "canvas": canvas[0].tolist(),
            "temperature": temperature,
            "best": best.indices[:, 0].tolist(),
            "margins": [oracle.rounded(float(first - second)) for first, second in best.values[:, :2]],
            "entropies": [oracle.rounded(float(-(row * row.clamp_min(1e-300).log()).sum())) for row in probabilities],
            "means": [[oracle.rounded(float(value)) for value in row[:4]] for row in means],
        })  # fmt: skip
        canvas = torch.where(torch.from_numpy(rng.random((1, CANVAS)) < 0.5), canvas, best.indices[None, :, 0])
    return steps


def cases(model, rng: np.random.Generator) -> list[dict]:
    prompts = [texts(rng, 1, length) for length in PROMPT_LENGTHS]
    return [{
        "tokens": prompt[0].tolist(),
        "rows": rows_case(model, prompt, rng),
        "generated": [generated(model, prompt, seed) for seed in SEEDS],
    } for prompt in prompts]  # fmt: skip


def write_file(path, model, config) -> None:
    writer = gguf.GGUFWriter(path, NAME)
    families.write_metadata(writer, NAME, CHECKPOINT, config)
    FAMILY.write_vocabulary(writer)
    state = {key: value.detach() for key, value in model.state_dict().items()}
    layers = {
        key.replace("model.decoder.", "model."): value
        for key, value in state.items()
        if key.startswith("model.decoder.") and "self_conditioning" not in key and "embed_scale" not in key
    }
    families.write_weights(writer, CHECKPOINT, config, {key: tuple(value.shape) for key, value in layers.items()},
                           np.random.default_rng(0), lambda key, shape: layers[key].numpy())  # fmt: skip
    for layer in range(config.num_hidden_layers):
        scalar = state[f"model.encoder.language_model.layers.{layer}.layer_scalar"]
        writer.add_tensor(f"blk.{layer}.enc_layer_output_scale.weight", scalar.numpy())
    own = dict(pre_norm="pre_norm", gate="gate_proj", up="up_proj", down="down_proj")
    for stored, name in own.items():
        writer.add_tensor(f"self_cond_{stored}.weight", state[f"model.decoder.self_conditioning.{name}.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_directory(folder, model) -> None:
    """The directory as transformers saves it, without the tower for images."""
    shutil.rmtree(folder, ignore_errors=True)
    model.generation_config.max_denoising_steps = MAX_STEPS
    model.save_pretrained(folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights = {key: value.contiguous() for key, value in weights.items() if "vision" not in key}
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    config = configuration()
    model = diffusion_gemma.DiffusionGemmaForBlockDiffusion(config).to(torch.float32)
    for layers in (model.model.decoder.layers, model.model.encoder.language_model.layers):
        for layer in layers:
            layer.layer_scalar.copy_(torch.from_numpy(1.0 + 0.2 * rng.standard_normal(1)))
    loss = train(model, rng)
    model.eval()
    folder = families.FIXTURES / "diffusion"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.gguf"
    write_file(path, model, copy.deepcopy(config.text_config))
    oracle.write_json(path.with_suffix(".json"), {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": f"transformers {transformers.__version__} DiffusionGemmaForBlockDiffusion, float32",
        "prompts": cases(model, rng),
    })  # fmt: skip
    print(f"{NAME:20} {path.stat().st_size / 1024:7.0f} KiB, loss {loss:.4f}", flush=True)
    write_directory(path.with_suffix(""), model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
