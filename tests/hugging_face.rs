//! Hugging Face directories, compared with GGUF files of the same weights and with transformers.
//!
//! `tests/generate/families.py` writes both. The directory must give the logits of the GGUF file: bit for bit, or near them where
//! the file holds rounded sums of stored values.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuelight_engine::checkpoint::{self, Checkpoint};
use cuelight_engine::engine::{Engine, TokenId};
use cuelight_engine::load::{self, ActivationBits, ComputeDevice, CpuExperts, Kernel, KvType, LoadOptions};
use cuelight_engine::quantize::{QuantizeOptions, QuantizePlan};
use serde::Deserialize;

#[path = "support/runner.rs"]
#[allow(dead_code)]
mod runner;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use runner::{Rows, Runner, Sequence, Setup, deltas, largest, mean};
use test_seed::of_the_day;
use vulkan_device::has_device;

/// Mean |Δ log-prob| of a prompt's tokens, in nats, as in `tests/parity.rs`.
const FLOAT_GATE: f64 = 1e-4;

/// [`FLOAT_GATE`] for weights in fewer bits, with which integer kernels round activations.
const QUANTISED_GATE: f64 = 1e-3;

/// Largest difference of a logit where the two are not equal bit for bit.
const NEAR: f32 = 1e-4;

/// Those whose GGUF file holds values that were rounded once more: `-exp(A_log)`, weights times a factor, and quantiles.
const ROUNDED: &[&str] = &[
    "gemma3n",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
    "kimi-linear",
    "kimi-k3",
    "kimi-k3-wide",
    "bailingmoe3",
    "glm5-next",
    "deepseek4",
    "granitehybrid",
    "granitehybrid-moe",
    "nemotron_h",
    "nemotron_h_moe-latent",
    "falcon-h1-factors",
    "minicpm",
    "mamba",
    "mamba-falcon",
    "mamba2-groups",
    "jamba",
];

/// Those with factors, which are tensors of one value each. The GGUF file holds them in the weights.
const WITH_FACTORS: &[&str] = &["falcon-h1-factors"];

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("hugging_face")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn runner_of(path: &Path) -> Runner<impl Engine> {
    runner_with(path, Kernel::detect())
}

fn runner_with(path: &Path, kernel: Kernel) -> Runner<impl Engine> {
    runner::load(path, setup(kernel))
}

fn setup(kernel: Kernel) -> Setup {
    Setup {
        kv_type: KvType::F32,
        kernel,
        threads: 1,
        context_tokens: 512,
        max_sequences: 128,
        device: ComputeDevice::Cpu,
        deterministic: false,
        cpu_experts: CpuExperts::Auto,
        activation_bits: ActivationBits::default(),
    }
}

fn logits(runner: &mut Runner<impl Engine>, tokens: &[TokenId]) -> Rows {
    let mut sequence = Sequence::default();
    let rows = runner.feed(&mut sequence, tokens, usize::MAX);
    runner.release(sequence);
    rows
}

/// The largest difference of two logits.
fn distance(left: &Rows, right: &Rows) -> f32 {
    let pairs = left.iter().flatten().zip(right.iter().flatten());
    pairs
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, |most, next| if next > most || next.is_nan() { next } else { most })
}

#[test]
fn directories_give_the_logits_of_gguf_files_and_of_transformers() {
    let mut failures = Vec::new();
    for name in names() {
        let families = fixtures().join("families");
        let expected: Expected =
            serde_json::from_slice(&std::fs::read(families.join(format!("{name}.json"))).unwrap()).unwrap();
        let mut directory = runner_of(&fixtures().join("hugging_face").join(&name));
        let mut file = runner_of(&families.join(format!("{name}.gguf")));
        let (mut most, mut means) = (0f32, Vec::new());
        for prompt in &expected.prompts {
            let rows = logits(&mut directory, &prompt.tokens);
            most = most.max(distance(&rows, &logits(&mut file, &prompt.tokens)));
            means.push(mean(&deltas(&rows, &prompt.tokens, &prompt.logprobs)));
        }
        println!("{name:24} from GGUF {most:8.1e}, from transformers {:8.1e}", largest(&means));
        let near = if ROUNDED.contains(&name.as_str()) { NEAR } else { 0.0 };
        if most > near || most.is_nan() {
            failures.push(format!("{name}: logits differ by {most:e} from those of the GGUF file"));
        }
        if largest(&means) > FLOAT_GATE || means.iter().any(|mean| mean.is_nan()) {
            failures.push(format!("{name}: {means:?} nats from transformers"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The directories whose weights have zero points.
const WITH_ZEROS: [&str; 6] = [
    "llama-awq",
    "llama-gptq-zeros",
    "llama-gptq-v2-zeros",
    "llama-w4a16-zeros",
    "llama-w8a8-zeros",
    "llama-w4a16-order",
];

/// The directories whose weights are in 4-bit floating point.
const FLOAT4: [&str; 7] = [
    "gpt-oss-mxfp4",
    "llama-mxfp4",
    "llama-nvfp4",
    "llama-modelopt-nvfp4",
    "qwen3moe-modelopt-nvfp4",
    "llama-bitsandbytes",
    "deepseek4-fp8-fp4",
];

/// The directories whose groups are in the order of activations.
const ORDERED: [&str; 2] = ["llama-gptq-order", "llama-w4a16-order"];

/// Weights that other tools packed stand for the values that transformers computed with.
#[test]
fn quantized_directories_agree_with_transformers() {
    let folder = fixtures().join("quantized_directories");
    let mut failures = Vec::new();
    let symmetric = ["llama-w4a16", "llama-w8a16", "llama-gptq-4", "llama-gptq-order", "qwen3moe-gptq-8", "llama-w8a8"];
    for name in symmetric.iter().chain(&WITH_ZEROS).chain(&FLOAT4) {
        let text = std::fs::read(folder.join(name).join("expected.json")).unwrap();
        let expected: Expected = serde_json::from_slice(&text).unwrap();
        let mut directory = runner_of(&folder.join(name));
        let of_prompt =
            |prompt: &Prompt| mean(&deltas(&logits(&mut directory, &prompt.tokens), &prompt.tokens, &prompt.logprobs));
        let means: Vec<f64> = expected.prompts.iter().map(of_prompt).collect();
        println!("{name:24} from transformers {:8.1e}", largest(&means));
        if largest(&means) > QUANTISED_GATE || means.iter().any(|mean| mean.is_nan()) {
            failures.push(format!("{name}: {means:?} nats from transformers"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The directories whose weights are in 8-bit floating point: scales of blocks, of outputs, of matrices.
const FLOAT8: [&str; 6] = [
    "qwen3moe-fp8-blocks",
    "llama-fp8-channels",
    "llama-fp8-tensors",
    "llama-fbgemm-fp8",
    "llama-modelopt-fp8",
    "llama-mxfp8",
];

/// Mean |Δ log-prob| where neither weights nor activations are rounded.
const EXACT_GATE: f64 = 1e-4;

/// Asserts that a directory is within [`EXACT_GATE`] of transformers.
fn assert_exact(name: &str, kernel: Kernel) {
    let folder = fixtures().join("quantized_directories").join(name);
    let expected: Expected = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let mut directory = runner_with(&folder, kernel);
    for prompt in &expected.prompts {
        let found = mean(&deltas(&logits(&mut directory, &prompt.tokens), &prompt.tokens, &prompt.logprobs));
        println!("{name:24} {kernel} from transformers {found:8.1e}");
        assert!(found <= EXACT_GATE, "{name} with {kernel}: {found} nats");
    }
}

#[test]
fn directories_in_8_bit_floating_point_agree_with_transformers() {
    for (name, kernel) in FLOAT8.iter().flat_map(|name| [(name, Kernel::Scalar), (name, Kernel::detect())]) {
        assert_exact(name, kernel);
    }
}

/// The scalar kernel rounds no activations.
#[test]
fn directories_with_zero_points_or_4_bit_floating_point_agree_with_transformers() {
    for name in WITH_ZEROS.into_iter().chain(FLOAT4).chain(ORDERED) {
        assert_exact(name, Kernel::Scalar);
    }
}

/// NF4 has no integers, so no kernel rounds activations.
#[test]
fn directories_of_bitsandbytes_agree_with_it_on_every_kernel() {
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        assert_exact("llama-bitsandbytes", kernel);
    }
    let folder = fixtures().join("quantized_directories/llama-bitsandbytes");
    let checkpoint = checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.weight("blk.1.attn_q.weight").unwrap().format.name(), "NF4");
}

/// A row in a batch and with other chunks has the bits that it has alone.
#[test]
fn inputs_in_another_order_keep_the_bits_of_each_row() {
    for name in ORDERED {
        let mut directory = runner_of(&fixtures().join("quantized_directories").join(name));
        let tokens: Vec<TokenId> = (0..23).map(|token| token * 7 % 512).collect();
        let whole = logits(&mut directory, &tokens);
        let mut sequence = Sequence::default();
        let chunked = directory.feed(&mut sequence, &tokens, 5);
        directory.release(sequence);
        let bits = |rows: &Rows| rows.iter().flatten().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&whole), bits(&chunked), "{name}");
    }
}

/// A device computes the values of the formats of directories that GGUF files lack, and reorders inputs.
#[test]
fn a_device_agrees_with_transformers_on_quantized_directories() {
    if !has_device() {
        return;
    }
    for name in of_the_day(["llama-bitsandbytes", "llama-gptq-order", "llama-w4a16-order"], 3) {
        let folder = fixtures().join("quantized_directories").join(name);
        let text = std::fs::read(folder.join("expected.json")).unwrap();
        let expected: Expected = serde_json::from_slice(&text).unwrap();
        let mut directory =
            runner::load(&folder, Setup { device: ComputeDevice::Vulkan(0), ..setup(Kernel::detect()) });
        for prompt in &expected.prompts {
            let found = mean(&deltas(&logits(&mut directory, &prompt.tokens), &prompt.tokens, &prompt.logprobs));
            println!("{name:24} on a device from transformers {found:8.1e}");
            assert!(found <= QUANTISED_GATE, "{name}: {found} nats");
        }
    }
}

/// A GGUF file has no place for the order of inputs.
#[test]
fn directories_in_the_order_of_activations_are_not_converted() {
    let checkpoint = checkpoint::open(&fixtures().join("quantized_directories/llama-gptq-order")).unwrap();
    let error = QuantizePlan::new(&*checkpoint, &QuantizeOptions::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("order of activations, which a GGUF file cannot state"), "{error}");
}

/// The copies have their recipe's formats, and values near those of the directory.
#[test]
fn directories_in_8_bit_floating_point_can_be_quantized_further() {
    for (name, target) in FLOAT8.iter().flat_map(|name| [(name, "q8_0"), (name, "q4_k_m")]) {
        let checkpoint = checkpoint::open(&fixtures().join("quantized_directories").join(name)).unwrap();
        let target = target.parse().unwrap();
        let options = QuantizeOptions { target: Some(target), threads: 1, ..QuantizeOptions::default() };
        let (folder, plan) = (tempfile::tempdir().unwrap(), QuantizePlan::new(&*checkpoint, &options).unwrap());
        let path = folder.path().join("copy.gguf");
        plan.write(&path, &Default::default(), &mut |_| {}).unwrap();
        let copy = checkpoint::open(&path).unwrap();
        let weight = |checkpoint: &dyn Checkpoint| checkpoint.weight("blk.1.attn_q.weight").unwrap();
        let (before, after) = (weight(&*checkpoint), weight(&*copy));
        assert_eq!(before.format.name(), "F8_E4M3");
        assert_ne!(after.format.name(), "F8_E4M3");
        let pairs = before.to_f32().into_iter().zip(after.to_f32());
        let (error, size) =
            pairs.fold((0.0, 0.0), |(error, size), (old, new)| (error + (old - new).powi(2), size + old * old));
        assert!(error < 0.01 * size, "{name} as {target}: {error} of {size}");
    }
}

#[test]
fn the_format_of_8_bit_floating_point_is_shown() {
    let folder = fixtures().join("quantized_directories/llama-fp8-channels");
    let shown = printed(&["show", folder.to_str().unwrap(), "--tensors"]);
    let row = shown.lines().find(|line| line.contains("blk.0.ffn_down.weight")).unwrap_or_default();
    assert!(row.contains("F8_E4M3") && row.contains("128 x 64"), "{shown}");
}

#[test]
fn quantized_directories_state_their_format() {
    let card = |name: &str| {
        let path = fixtures().join("quantized_directories").join(name);
        load::plan(&LoadOptions::new(path)).unwrap().card().clone()
    };
    assert_eq!(card("llama-w4a16").layers, card("llama-gptq-4").layers);
    // Most bytes of these tiny models are those of the embedding.
    assert_eq!(card("llama-gptq-4").quantization, "F32");
    assert!(card("llama-w4a16").size_bytes < card("llama-w8a16").size_bytes);
}

/// Every key that the GGUF file has for the model's layers has the same value.
#[test]
fn directories_have_the_cards_of_gguf_files() {
    for name in names() {
        let card = |path: PathBuf| load::plan(&LoadOptions::new(path)).unwrap().card().clone();
        let directory = card(fixtures().join("hugging_face").join(&name));
        let file = card(fixtures().join(format!("families/{name}.gguf")));
        assert_eq!(directory.layers, file.layers, "{name}");
        assert_eq!(directory.architecture, file.architecture, "{name}");
        assert!(directory.n_params == file.n_params || WITH_FACTORS.contains(&name.as_str()), "{name}");
        assert_eq!(directory.name, name);
    }
}

/// What the program prints for a command about the directory that has all files.
fn printed(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.args(arguments).env_clear().env("HOME", home.path()).env("CUELIGHT_CALIBRATE", "off").stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn commands_take_a_directory_as_their_model() {
    let [directory, file] =
        ["hugging_face/llama-shards", "families/llama-shards.gguf"].map(|path| fixtures().join(path));
    let both = [directory, file].map(|path| path.to_str().unwrap().to_owned());
    let of_both = |arguments: &[&str]| {
        let with = |model: &String| {
            let arguments: Vec<&str> =
                arguments.iter().map(|text| if *text == "MODEL" { model } else { *text }).collect();
            printed(&arguments)
        };
        [with(&both[0]), with(&both[1])]
    };
    let text = "The harbour was quiet before the storm.";
    for arguments in [
        &["tokenize", "MODEL", text][..],
        &["run", "MODEL", text, "--temp", "0", "--max-tokens", "8", "--ctx-size", "256"],
    ] {
        let [from_directory, from_file] = of_both(arguments);
        assert_eq!(from_directory, from_file, "{arguments:?}");
        assert!(!from_file.is_empty());
    }
    let shown = printed(&["show", &both[0], "--tensors"]);
    for part in ["general.architecture", "\"llama\"", "blk.1.ffn_down.weight", "48 x 32", "F32"] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
}
