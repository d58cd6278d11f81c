//! Whole models on a Vulkan device, compared with transformers, with the CPU and with themselves.
//!
//! Any device works, also lavapipe, Mesa's Vulkan on the CPU. Without a device these tests print that they are skipped and pass.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::backend::vulkan::{Instance, InstanceOptions};
use cuelight_engine::engine::{Engine, ExpertCounts, LogitsWanted, RowSamplingParams, SampledToken, TokenId};
use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::load::{
    ActivationBits, ComputeDevice, CpuExperts, ExpertStreaming, Kernel, KvType, LoadError, LoadOptions, VulkanOptions,
    plan,
};
use cuelight_engine::sample::choose_by_row;
use serde::Deserialize;

#[path = "support/runner.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod runner;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use runner::{Rows, Runner, Sequence, Setup, assert_same_bits, deltas, largest, load, longest_compared, mean};
use test_seed::of_the_day;
use vulkan_device::has_device;

/// Largest mean |Δ log-prob| of a prompt's tokens compared with transformers, in nats.
const GATE: f64 = 2e-3;

/// [`GATE`] for float32 weights and a float32 cache.
const FLOAT_GATE: f64 = 1e-4;

/// Longest prompt that is measured where values are rounded, so that a row of a longer one more often has other experts, and where
/// experts are streamed, which takes long.
const LONGEST_SHORT: usize = 100;

/// [`GATE`] for a float16 cache, or for products of float16 matrices.
const HALF_GATE: f64 = 5e-3;

/// Whether the device computes products of many rows with float16 matrices.
fn has_matrices() -> bool {
    let devices = Instance::load(InstanceOptions::default()).and_then(|instance| instance.devices()).unwrap();
    devices[0].limits.cooperative_matrix.is_some()
}

/// The expected values of one checkpoint, from transformers.
#[derive(Deserialize)]
struct Expected {
    model: String,
    formats: Vec<String>,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families")
}

fn checkpoints() -> Vec<Expected> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

fn setup(kv_type: KvType) -> Setup {
    Setup {
        kv_type,
        kernel: Kernel::detect(),
        threads: 1,
        context_tokens: 512,
        max_sequences: 128,
        device: ComputeDevice::Vulkan(0),
        deterministic: false,
        cpu_experts: CpuExperts::Auto,
        activation_bits: ActivationBits::default(),
    }
}

#[test]
fn checkpoints_agree_with_transformers_with_a_float32_cache() {
    agree_with_transformers(of_the_day(checkpoints(), 18).collect(), KvType::F32);
}

#[test]
fn checkpoints_agree_with_transformers_with_a_float16_cache() {
    agree_with_transformers(of_the_day(checkpoints(), 30).collect(), KvType::F16);
}

#[test]
#[ignore = "slow tier: a software device compiles the shaders of many families for minutes"]
fn a_third_of_the_checkpoints_agree_with_transformers() {
    agree_with_transformers(of_the_day(checkpoints(), 3).collect(), KvType::F32);
}

#[test]
fn attention_to_selected_positions_agrees_with_transformers() {
    const MODELS: [&str; 8] = [
        "deepseek32.gguf",
        "glm-dsa.gguf",
        "glm5-next.gguf",
        "qwen4exp.gguf",
        "deepseek4.gguf",
        "minimax-m3.gguf",
        "minimax-m3-local.gguf",
        "hy_v4.gguf",
    ];
    let selects = |expected: &Expected| MODELS.contains(&expected.model.as_str());
    agree_with_transformers(of_the_day(checkpoints().into_iter().filter(selects), 8).collect(), KvType::F32);
}

fn agree_with_transformers(checkpoints: Vec<Expected>, kv_type: KvType) {
    if !has_device() {
        return;
    }
    assert!(!checkpoints.is_empty());
    let mut failures = Vec::new();
    for expected in checkpoints {
        // Float32 weights are never rounded.
        let rounded = has_matrices() && expected.formats != ["F32"];
        let is_exact = !rounded && kv_type == KvType::F32;
        let rounded_experts = !is_exact && has_experts(&expected.model);
        let gate = match (is_exact, expected.formats == ["F32"]) {
            (false, _) => HALF_GATE,
            (true, true) => FLOAT_GATE,
            (true, false) => GATE,
        };
        let mut runner = load(&folder().join(&expected.model), setup(kv_type));
        let longest = longest_compared(&folder().join(&expected.model), kv_type);
        let longest = if is_exact { longest } else { longest.min(LONGEST_SHORT) };
        let is_measured = |prompt: &&Prompt| prompt.tokens.len() <= longest;
        let prompts = expected.prompts.iter().filter(is_measured);
        let means: Vec<f64> = prompts.map(|prompt| distance(&mut runner, prompt)).collect();
        let shown: Vec<String> = means.iter().map(|mean| format!("{mean:8.1e}")).collect();
        println!("{:26} KV {kv_type:5} {}", expected.model, shown.join(" "));
        if !agrees(&means, gate, rounded_experts) {
            let shown = shown.join(" ");
            failures.push(format!("{} (KV {kv_type}): mean |Δ log-prob|{shown} > {gate}", expected.model));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn experts_in_a_small_cache_agree_with_transformers() {
    agree_with_a_cache_of(2, ExpertStreaming::Off, |counts| counts.cached_routes > 0 && counts.streamed_routes == 0);
}

#[test]
fn experts_streamed_for_a_prompt_agree_with_transformers() {
    // One slot in each streaming half, so every layer needs many passes; three slots for the cache.
    agree_with_a_cache_of(5, ExpertStreaming::FromRows(8), |counts| {
        counts.streamed_routes > 0 && counts.uploaded_bytes > 0
    });
}

/// Checks a tenth of the models with experts, all of these on the host, and a cache of `slots` experts on the device. `counted`
/// checks the counts.
fn agree_with_a_cache_of(slots: u64, expert_streaming: ExpertStreaming, counted: fn(&ExpertCounts) -> bool) {
    if !has_device() {
        return;
    }
    let with_experts = checkpoints().into_iter().filter(|expected| has_experts(&expected.model));
    let mut failures = Vec::new();
    for (index, expected) in of_the_day(with_experts, 10).enumerate() {
        let rounded = has_matrices() && expected.formats != ["F32"];
        let options = LoadOptions {
            device: ComputeDevice::Vulkan(0).into(),
            cpu_experts: CpuExperts::All,
            kv_type: KvType::F32,
            context_tokens: Some(512),
            vulkan: VulkanOptions { force_staging: index % 2 == 0, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join(&expected.model))
        };
        let slot_bytes = match plan(&LoadOptions { expert_cache_bytes: Some(1), ..options.clone() }) {
            Err(LoadError::ExpertCacheTooSmall { least_bytes, .. }) => least_bytes,
            other => panic!("{}: {:?}", expected.model, other.err()),
        };
        let options = LoadOptions { expert_cache_bytes: Some(slots * slot_bytes), expert_streaming, ..options };
        let planned = plan(&options).unwrap();
        let device = &planned.limits().device;
        assert!(device.contains("also in the device's cache"), "{device}");
        let mut runner = Runner::new(planned.load_engine(&mut |_| {}).unwrap());
        let prompts = expected.prompts.iter().filter(|prompt| prompt.tokens.len() <= LONGEST_SHORT);
        let means: Vec<f64> = prompts.map(|prompt| distance(&mut runner, prompt)).collect();
        let shown: Vec<String> = means.iter().map(|mean| format!("{mean:8.1e}")).collect();
        println!("{:26} {} {:?}", expected.model, shown.join(" "), runner.experts);
        let gate = if rounded { HALF_GATE } else { GATE };
        if !agrees(&means, gate, rounded) || !counted(&runner.experts) {
            failures.push(format!("{}: {} {:?}", expected.model, shown.join(" "), runner.experts));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_expert_cache_is_refused_without_a_device_and_with_deterministic_results() {
    let refusal = |change: fn(&mut LoadOptions)| {
        let mut options =
            LoadOptions { expert_cache_bytes: Some(1 << 20), ..LoadOptions::new(folder().join("qwen3moe.gguf")) };
        change(&mut options);
        plan(&options).err().unwrap().to_string()
    };
    let on_cpu = refusal(|_| ());
    let streaming = refusal(|options| {
        options.expert_cache_bytes = None;
        options.expert_streaming = ExpertStreaming::FromRows(64);
    });
    assert!(streaming.contains("steps of 64 rows or more needs an expert cache"), "{streaming}");
    assert!(on_cpu.contains("an expert cache needs one Vulkan device"), "{on_cpu}");
    if has_device() {
        let deterministic = refusal(|options| {
            options.device = ComputeDevice::Vulkan(0).into();
            options.deterministic = true;
        });
        assert!(deterministic.contains("deterministic results cannot both be set"), "{deterministic}");
    }
}

/// Whether the mean of every prompt is within the gate.
///
/// A float16 cache or products of float16 matrices can route a row with two almost equal experts to the other expert, which changes
/// the row's result. With `rounded_experts` the gate therefore applies to the median prompt, and no prompt may be far off.
fn agrees(means: &[f64], gate: f64, rounded_experts: bool) -> bool {
    const FAR_OFF: f64 = 0.2;
    if !rounded_experts {
        return means.iter().all(|mean| *mean <= gate);
    }
    let mut sorted = means.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2] <= gate && sorted.iter().all(|mean| *mean <= FAR_OFF)
}

fn has_experts(model: &str) -> bool {
    let gguf = Gguf::open(folder().join(model)).unwrap();
    gguf.tensors().iter().any(|tensor| tensor.name.contains("_exps."))
}

/// Mean |Δ log-prob| of a prompt, fed in chunks and at the end in single tokens.
fn distance(runner: &mut Runner<impl Engine>, prompt: &Prompt) -> f64 {
    let mut sequence = Sequence::default();
    let (most, rest) = prompt.tokens.split_at(prompt.tokens.len() - 3);
    let mut rows = runner.feed(&mut sequence, most, 48);
    rows.extend(runner.feed(&mut sequence, rest, 1));
    runner.release(sequence);
    mean(&deltas(&rows, &prompt.tokens, &prompt.logprobs))
}

#[test]
fn a_context_of_many_blocks_gives_the_logits_of_the_cpu() {
    if !has_device() {
        return;
    }
    let limit = if has_matrices() { 0.1 } else { 0.02 };
    // Longer than the sections into which attention splits contexts; fed as a prompt, then one token at a time.
    for name in ["llama-q4_k.gguf", "gemma2-q5_1.gguf", "mistral-window.gguf", "qwen35.gguf"] {
        let tokens: Vec<TokenId> = (0..300).map(|index| (index * 37 + 11) % 500).collect();
        let rows = |device| {
            let mut runner = load(&folder().join(name), Setup { device, ..setup(KvType::F32) });
            let mut sequence = Sequence::default();
            let mut rows = runner.feed(&mut sequence, &tokens[..290], 64);
            rows.extend(runner.feed(&mut sequence, &tokens[290..], 1));
            rows
        };
        let (ours, theirs) = (rows(ComputeDevice::Vulkan(0)), rows(ComputeDevice::Cpu));
        let distance = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| {
            let differences: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).collect();
            largest(&differences)
        };
        let worst = largest(&ours.iter().zip(&theirs).map(distance).collect::<Vec<_>>());
        println!("{name}: largest difference of a logit {worst:.1e}");
        assert!(worst < limit, "{name}: a logit differs by {worst} from the CPU's");
    }
}

#[test]
fn deterministic_logits_have_the_same_bits_in_any_chunks_and_any_batch() {
    if !has_device() {
        return;
    }
    for name in [
        "llama-q4_k.gguf",
        "gemma2-q5_1.gguf",
        "qwen3-q8_0.gguf",
        "qwen3moe-q4_k.gguf",
        "qwen35moe.gguf",
        "glm-dsa.gguf",
        "minimax-m3-local.gguf",
    ] {
        let setup = Setup { deterministic: true, ..setup(KvType::F16) };
        let mut runner = load(&folder().join(name), setup);
        let tokens: Vec<TokenId> = (0..280).map(|index| (index * 53 + 7) % 500).collect();
        let mut sequence = Sequence::default();
        let whole = runner.feed(&mut sequence, &tokens, 128);
        runner.release(sequence);
        for chunk in [1, 7, 64] {
            let tokens = if chunk == 1 { &tokens[..40] } else { &tokens };
            let mut sequence = Sequence::default();
            let rows = runner.feed(&mut sequence, tokens, chunk);
            runner.release(sequence);
            assert_same_bits(&rows, &whole[..rows.len()], &format!("{name}, chunks of {chunk}"));
        }
        assert_same_bits(&in_batch(&mut runner, &tokens), &whole, &format!("{name}, in a batch"));
    }
}

/// Feeds `tokens` while other sequences, more with each step, run in the same steps.
fn in_batch(runner: &mut Runner<impl Engine>, tokens: &[TokenId]) -> Rows {
    let mut sequence = Sequence::default();
    let mut others: Vec<Sequence> = (0..20).map(|_| Sequence::default()).collect();
    let mut rows = Rows::new();
    for (round, piece) in tokens.chunks(31).enumerate() {
        let mut shares: Vec<runner::RunnerRows<'_>> = Vec::new();
        for (index, other) in others.iter_mut().enumerate().take(round * 3) {
            shares.push((other, &tokens[index..index + 1 + index % 4], LogitsWanted::Last));
        }
        let ours = shares.len() / 2;
        shares.insert(ours, (&mut sequence, piece, LogitsWanted::All));
        rows.extend(runner.step(&mut shares).swap_remove(ours));
    }
    runner.release(sequence);
    others.into_iter().for_each(|other| runner.release(other));
    rows
}

#[test]
fn device_memory_that_the_host_cannot_map_gives_the_same_bits() {
    if !has_device() {
        return;
    }
    let tokens: Vec<TokenId> = (1..90).collect();
    let rows = |force_staging| {
        let options = LoadOptions {
            device: ComputeDevice::Vulkan(0).into(),
            context_tokens: Some(128),
            vulkan: VulkanOptions { force_staging, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join("qwen2-k-mixed.gguf"))
        };
        let engine = plan(&options).unwrap().load_engine(&mut |_| {}).unwrap();
        Runner::new(engine).feed(&mut Sequence::default(), &tokens, 33)
    };
    assert_same_bits(&rows(true), &rows(false), "staged");
}

/// Logits of a prompt in chunks, then of single tokens in a batch with another sequence.
fn logits(options: LoadOptions) -> Rows {
    let tokens: Vec<TokenId> = (0..60).map(|index| (index * 29 + 3) % 500).collect();
    let engine = plan(&options).unwrap().load_engine(&mut |_| {}).unwrap();
    let mut runner = Runner::new(engine);
    let (mut sequence, mut other) = (Sequence::default(), Sequence::default());
    let mut rows = runner.feed(&mut sequence, &tokens[..50], 20);
    for token in tokens[50..].chunks(1) {
        let mut shares = [(&mut other, &tokens[..3], LogitsWanted::Last), (&mut sequence, token, LogitsWanted::All)];
        rows.extend(runner.step(&mut shares).remove(1));
    }
    rows
}

#[test]
fn two_devices_that_share_the_layers_give_the_same_bits_as_one() {
    if !has_device() {
        return;
    }
    // The same device twice: two logical devices, each with its own memory and queue.
    let on = |model: &str, device: &str, force_staging| {
        logits(LoadOptions {
            device: device.parse().unwrap(),
            split: device.contains(',').then(|| "1,1".parse().unwrap()),
            deterministic: true,
            context_tokens: Some(128),
            vulkan: VulkanOptions { force_staging, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join(model))
        })
    };
    // Two values cross between the layers of `gemma4-e` and `gemma3n`. In the last one, the second layer attends to the positions
    // that the first one has selected, so they stay together.
    for model in ["gemma2.gguf", "qwen3next.gguf", "gemma4-e.gguf", "gemma3n.gguf", "glm-dsa.gguf", "qwen4exp.gguf"] {
        let one = on(model, "vulkan:0", false);
        assert_same_bits(&on(model, "vulkan:0,vulkan:0", false), &one, "two devices");
        assert_same_bits(&on(model, "vulkan:0,vulkan:0", true), &one, "two devices, staged");
    }
}

#[test]
fn layers_on_the_cpu_and_on_a_device_agree_with_the_cpu_alone() {
    if !has_device() {
        return;
    }
    let on = |gpu_layers, kernel| {
        logits(LoadOptions {
            device: ComputeDevice::Vulkan(0).into(),
            gpu_layers: Some(gpu_layers),
            kernel,
            // No products in float16, so only rounding differs: that of sums, and of inputs to 15 bits on the device.
            deterministic: true,
            kv_type: KvType::F32,
            context_tokens: Some(128),
            ..LoadOptions::new(folder().join("llama-q4_k.gguf"))
        })
    };
    // The model has two layers: 0 is the CPU alone, 2 the device alone.
    let cpu = on(0, Kernel::Scalar);
    for gpu_layers in [1, 2] {
        let distance = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| {
            largest(&ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).collect::<Vec<_>>())
        };
        let rows = on(gpu_layers, Kernel::Scalar);
        let worst = largest(&rows.iter().zip(&cpu).map(distance).collect::<Vec<_>>());
        assert!(worst < 1e-2, "with {gpu_layers} layers on the device a logit differs by {worst} from the CPU's");
    }
}

/// Tokens of the tiny checkpoints.
const VOCABULARY: usize = 512;

/// Sampling parameters of rows: greedy, and sampling with each truncation and with all of them.
fn choices(index: u64) -> [RowSamplingParams; 5] {
    let random = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let plain = RowSamplingParams { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0, random };
    let together = RowSamplingParams { top_k: 20, top_p: 0.9, min_p: 0.02, ..plain };
    [
        RowSamplingParams::GREEDY,
        plain,
        RowSamplingParams { top_k: 7, ..plain },
        RowSamplingParams { top_p: 0.7, ..plain },
        together,
    ]
}

#[test]
fn a_device_samples_the_tokens_of_the_host_and_returns_no_logits_for_those_rows() {
    if !has_device() {
        return;
    }
    let model = |device: &str, force_staging| {
        let options = LoadOptions {
            device: device.parse().unwrap(),
            split: device.contains(',').then(|| "1,1".parse().unwrap()),
            deterministic: true,
            context_tokens: Some(128),
            vulkan: VulkanOptions { force_staging, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join("llama-q4_k.gguf"))
        };
        Runner::new(plan(&options).unwrap().load_engine(&mut |_| {}).unwrap())
    };
    for (device, force_staging) in [("vulkan:0", false), ("vulkan:0", true), ("vulkan:0,vulkan:0", true)] {
        let mut runner = model(device, force_staging);
        let mut sequences: Vec<Sequence> = (0..7).map(|_| Sequence::default()).collect();
        let prompt: Vec<TokenId> = (0..9).map(|index| index * 31 % 500).collect();
        let mut next = prompt;
        for index in 0..12 {
            let sampled = choices(index).map(LogitsWanted::Token);
            // One row of the same tokens returns its logits, and one returns nothing.
            let wanted = [&sampled[..2], &[LogitsWanted::Last, LogitsWanted::None], &sampled[2..]].concat();
            let mut shares: Vec<_> =
                sequences.iter_mut().zip(wanted).map(|(sequence, wanted)| (sequence, &next[..], wanted)).collect();
            let output = runner.run(&mut shares);
            assert_eq!(output.logits.len(), VOCABULARY, "one row of logits is returned");
            let expected = choices(index).map(|choice| Some(choose_by_row(&output.logits, &choice)));
            let expected = [&expected[..2], &[None], &expected[2..]].concat();
            assert_eq!(output.sampled, expected, "{device}, staged {force_staging}, token {index}");
            let Some(SampledToken::Token(token)) = output.sampled[1] else { panic!("{:?}", output.sampled) };
            next = vec![token];
        }
    }
}

#[test]
fn a_missing_device_is_refused_by_its_index() {
    if !has_device() {
        return;
    }
    let options =
        LoadOptions { device: ComputeDevice::Vulkan(99).into(), ..LoadOptions::new(folder().join("llama.gguf")) };
    let error = plan(&options).map(drop).unwrap_err().to_string();
    assert!(error.contains("no Vulkan device 99"), "{error}");
}
