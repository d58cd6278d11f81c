//! Whole models on a Vulkan device: beside transformers, beside the CPU, and against themselves.
//!
//! Any device will do; where there is none, these tests say so and pass. Lavapipe is one: Mesa's Vulkan on the processor.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cuelight_engine::backend::vulkan::{Instance, InstanceOptions};
use cuelight_engine::engine::{Chosen, Engine, ExpertCounts, LogitsWanted, TokenChoice, TokenId};
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
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use runner::{Rows, Runner, Sequence, Setup, assert_same_bits, deltas, largest, load, mean};
use vulkan_device::has_device;

/// Mean |Δ log-prob| of a prompt's tokens beside transformers, in nats.
const GATE: f64 = 2e-3;

/// The same with a float16 cache, or with products in matrices of float16.
const HALF_GATE: f64 = 5e-3;

/// Whether the device forms products of many rows in matrices of float16.
fn has_matrices() -> bool {
    let devices = Instance::load(InstanceOptions::default()).and_then(|instance| instance.devices()).unwrap();
    devices[0].limits.cooperative_matrix.is_some()
}

/// What transformers says of one checkpoint.
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
fn every_checkpoint_agrees_with_transformers() {
    if !has_device() {
        return;
    }
    let mut complaints = Vec::new();
    for expected in checkpoints() {
        // Weights that are stored in float32 are never rounded.
        let rounded = has_matrices() && expected.formats != ["F32"];
        let gate = if rounded { HALF_GATE } else { GATE };
        for (kv_type, gate) in [(KvType::F32, gate), (KvType::F16, HALF_GATE)] {
            let mut runner = load(&folder().join(&expected.model), setup(kv_type));
            let means: Vec<f64> = expected.prompts.iter().map(|prompt| distance(&mut runner, prompt)).collect();
            let shown: Vec<String> = means.iter().map(|mean| format!("{mean:8.1e}")).collect();
            println!("{:26} KV {kv_type:5} {}", expected.model, shown.join(" "));
            if !agrees(&means, gate, rounded && has_experts(&expected.model)) {
                complaints.push(format!(
                    "{} (KV {kv_type}): mean |Δ log-prob|{} > {gate}",
                    expected.model,
                    shown.join(" ")
                ));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn experts_that_come_and_go_between_the_host_and_a_small_cache_agree_with_transformers() {
    agree_with_a_cache_of(2, ExpertStreaming::Off, |counts| counts.cached_routes > 0 && counts.streamed_routes == 0);
}

#[test]
fn experts_that_all_come_to_the_device_for_a_prompt_agree_with_transformers() {
    // One place in each half, so that every layer takes many passes; three are the cache's.
    agree_with_a_cache_of(5, ExpertStreaming::FromRows(8), |counts| {
        counts.streamed_routes > 0 && counts.uploaded_bytes > 0
    });
}

/// Checks every mixture with all experts on the host and room for so many on the device, and what must have been counted.
fn agree_with_a_cache_of(places: u64, expert_streaming: ExpertStreaming, counted: fn(&ExpertCounts) -> bool) {
    if !has_device() {
        return;
    }
    let mut complaints = Vec::new();
    for (index, expected) in checkpoints().into_iter().enumerate().filter(|(_, expected)| has_experts(&expected.model))
    {
        let rounded = has_matrices() && expected.formats != ["F32"];
        let options = LoadOptions {
            device: ComputeDevice::Vulkan(0).into(),
            cpu_experts: CpuExperts::All,
            kv_type: KvType::F32,
            context_tokens: Some(512),
            vulkan: VulkanOptions { force_staging: index % 2 == 0, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join(&expected.model))
        };
        let place_bytes = match plan(&LoadOptions { expert_cache_bytes: Some(1), ..options.clone() }) {
            Err(LoadError::ExpertCacheTooSmall { least_bytes, .. }) => least_bytes,
            other => panic!("{}: {:?}", expected.model, other.err()),
        };
        let options = LoadOptions { expert_cache_bytes: Some(places * place_bytes), expert_streaming, ..options };
        let planned = plan(&options).unwrap();
        let device = &planned.limits().device;
        assert!(device.contains("also in the device's cache"), "{device}");
        let mut runner = Runner::new(planned.load_engine(&mut |_| {}).unwrap());
        let means: Vec<f64> = expected.prompts.iter().map(|prompt| distance(&mut runner, prompt)).collect();
        let shown: Vec<String> = means.iter().map(|mean| format!("{mean:8.1e}")).collect();
        println!("{:26} {} {:?}", expected.model, shown.join(" "), runner.experts);
        let gate = if rounded { HALF_GATE } else { GATE };
        if !agrees(&means, gate, rounded) || !counted(&runner.experts) {
            complaints.push(format!("{}: {} {:?}", expected.model, shown.join(" "), runner.experts));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_cache_of_experts_where_there_can_be_none_is_refused() {
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
    assert!(streaming.contains("--expert-streaming 64 needs room"), "{streaming}");
    assert!(on_cpu.contains("--expert-cache needs one Vulkan device"), "{on_cpu}");
    if has_device() {
        let deterministic = refusal(|options| {
            options.device = ComputeDevice::Vulkan(0).into();
            options.deterministic = true;
        });
        assert!(deterministic.contains("--deterministic"), "{deterministic}");
    }
}

/// Whether the mean of every prompt is within the gate.
///
/// A row that is undecided between two experts takes the other one when its values are rounded to 11 bits, and then it is
/// another row: with `rounded_experts` the prompt in the middle counts, and none may be far off.
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

/// Mean |Δ log-prob| of a prompt, fed in chunks, the last of single tokens.
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
    // Longer than the pieces that attention cuts contexts into, fed as a prompt and then a token at a time.
    for name in ["llama-q4_k.gguf", "gemma2-q5_1.gguf", "mistral-window.gguf"] {
        let tokens: Vec<TokenId> = (0..300).map(|index| (index * 37 + 11) % 500).collect();
        let rows = |device| {
            let mut runner = load(&folder().join(name), Setup { device, ..setup(KvType::F32) });
            let mut sequence = Sequence::default();
            let mut rows = runner.feed(&mut sequence, &tokens[..290], 64);
            rows.extend(runner.feed(&mut sequence, &tokens[290..], 1));
            rows
        };
        let (ours, theirs) = (rows(ComputeDevice::Vulkan(0)), rows(ComputeDevice::Cpu));
        let apart = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| {
            let differences: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).collect();
            largest(&differences)
        };
        let worst = largest(&ours.iter().zip(&theirs).map(apart).collect::<Vec<_>>());
        println!("{name}: largest difference of a logit {worst:.1e}");
        assert!(worst < limit, "{name}: a logit is {worst} from the CPU's");
    }
}

#[test]
fn deterministic_logits_are_the_same_bits_in_any_chunks_and_in_any_company() {
    if !has_device() {
        return;
    }
    for name in ["llama-q4_k.gguf", "gemma2-q5_1.gguf", "qwen3-q8_0.gguf", "qwen3moe-q4_k.gguf"] {
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
        assert_same_bits(&in_company(&mut runner, &tokens), &whole, &format!("{name}, in company"));
    }
}

/// Feeds `tokens` while others, more with each step, go their own way in the same steps.
fn in_company(runner: &mut Runner<impl Engine>, tokens: &[TokenId]) -> Rows {
    let mut sequence = Sequence::default();
    let mut others: Vec<Sequence> = (0..20).map(|_| Sequence::default()).collect();
    let mut rows = Rows::new();
    for (round, piece) in tokens.chunks(31).enumerate() {
        let mut shares: Vec<runner::Share<'_>> = Vec::new();
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
fn memory_out_of_the_processors_reach_gives_the_same_bits() {
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

/// Logits of a prompt in chunks, then of single tokens beside another sequence.
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
fn two_devices_that_share_the_layers_give_the_bits_of_one() {
    if !has_device() {
        return;
    }
    // The same device twice: two logical devices, each with memory and a queue of its own.
    let on = |device: &str, force_staging| {
        logits(LoadOptions {
            device: device.parse().unwrap(),
            split: device.contains(',').then(|| "1,1".parse().unwrap()),
            deterministic: true,
            context_tokens: Some(128),
            vulkan: VulkanOptions { force_staging, ..VulkanOptions::default() },
            ..LoadOptions::new(folder().join("gemma2.gguf"))
        })
    };
    let one = on("vulkan:0", false);
    assert_same_bits(&on("vulkan:0,vulkan:0", false), &one, "two devices");
    assert_same_bits(&on("vulkan:0,vulkan:0", true), &one, "two devices, staged");
}

#[test]
fn layers_on_the_processor_and_on_a_device_make_one_model() {
    if !has_device() {
        return;
    }
    let on = |gpu_layers, kernel| {
        logits(LoadOptions {
            device: ComputeDevice::Vulkan(0).into(),
            gpu_layers: Some(gpu_layers),
            kernel,
            // In float32 whatever the device has: only rounding is left to differ.
            deterministic: true,
            kv_type: KvType::F32,
            context_tokens: Some(128),
            ..LoadOptions::new(folder().join("llama-q4_k.gguf"))
        })
    };
    // Of two layers: none is the processor alone, two are the device alone.
    let processor = on(0, Kernel::Scalar);
    for gpu_layers in [1, 2] {
        let apart = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| {
            largest(&ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).collect::<Vec<_>>())
        };
        let rows = on(gpu_layers, Kernel::Scalar);
        let worst = largest(&rows.iter().zip(&processor).map(apart).collect::<Vec<_>>());
        assert!(worst < 1e-3, "with {gpu_layers} layers on the device a logit is {worst} from the processor's");
    }
}

/// Tokens of the tiny checkpoints.
const VOCABULARY: usize = 512;

/// What rows may ask for: greedy, and draws with each truncation and with all of them.
fn choices(index: u64) -> [TokenChoice; 5] {
    let random = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let plain = TokenChoice { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0, random };
    let together = TokenChoice { top_k: 20, top_p: 0.9, min_p: 0.02, ..plain };
    [TokenChoice::GREEDY, plain, TokenChoice { top_k: 7, ..plain }, TokenChoice { top_p: 0.7, ..plain }, together]
}

#[test]
fn a_device_chooses_what_the_host_would_and_brings_back_no_logits_of_those_rows() {
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
            let asked = choices(index).map(LogitsWanted::Token);
            // Beside those that choose, one whose logits come back, of the same tokens; and one that wants nothing.
            let wanted = [&asked[..2], &[LogitsWanted::Last, LogitsWanted::None], &asked[2..]].concat();
            let mut shares: Vec<_> =
                sequences.iter_mut().zip(wanted).map(|(sequence, wanted)| (sequence, &next[..], wanted)).collect();
            let output = runner.run(&mut shares);
            assert_eq!(output.logits.len(), VOCABULARY, "one row of six comes back");
            let expected = choices(index).map(|choice| Some(choose_by_row(&output.logits, &choice)));
            let expected = [&expected[..2], &[None], &expected[2..]].concat();
            assert_eq!(output.chosen, expected, "{device}, staged {force_staging}, token {index}");
            let Some(Chosen::Token(token)) = output.chosen[1] else { panic!("{:?}", output.chosen) };
            next = vec![token];
        }
    }
}

#[test]
#[ignore = "prints times; run with --release, and CUELIGHT_TEST_MODEL=FILE for a model with a real vocabulary"]
fn how_long_a_decode_step_takes_with_tokens_and_with_logits_brought_back() {
    if !has_device() {
        return;
    }
    let tiny = folder().join("llama-q4_k.gguf");
    let path = std::env::var_os("CUELIGHT_TEST_MODEL").map_or(tiny, PathBuf::from);
    let mut runner = load(&path, setup(KvType::F16));
    for count in [1, 8, 16] {
        let mut sequences: Vec<Sequence> = (0..count).map(|_| Sequence::default()).collect();
        let [greedy, plain, _, nucleus, _] = choices(1).map(LogitsWanted::Token);
        let ways = [("logits", LogitsWanted::Last), ("greedy", greedy), ("drawn", plain), ("top_p", nucleus)];
        let mut times = ways.map(|_| Vec::new());
        for round in 0..10 {
            for (way, times) in ways.iter().zip(&mut times) {
                let mut shares: Vec<_> = sequences.iter_mut().map(|sequence| (sequence, &[7][..], way.1)).collect();
                let elapsed = runner.run(&mut shares).elapsed;
                // The first rounds record and compile.
                if round > 1 {
                    times.push(elapsed.as_secs_f64() * 1e3);
                }
            }
        }
        for ((name, _), mut times) in ways.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            println!("{count:2} sequences, {name:6}: median {:8.3} ms, least {:8.3}", times[times.len() / 2], times[0]);
        }
        sequences.into_iter().for_each(|sequence| runner.release(sequence));
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_the_number_that_are() {
    if !has_device() {
        return;
    }
    let options =
        LoadOptions { device: ComputeDevice::Vulkan(99).into(), ..LoadOptions::new(folder().join("llama.gguf")) };
    let error = plan(&options).map(drop).unwrap_err().to_string();
    assert!(error.contains("no Vulkan device 99") && error.contains("cuelight devices"), "{error}");
}
