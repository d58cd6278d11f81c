//! Experts on the host, through the whole actor tree: they give the same bits as experts in the engine.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::load::{ComputeDevice, CpuExperts, ExpertStreaming, LoadOptions, plan};
use cuelight_engine::memory::MemoryId;

#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use tiny_runtime::{answer, checkpoint, request};
use vulkan_device::has_device;

fn options(name: &str, cpu_experts: CpuExperts) -> LoadOptions {
    LoadOptions { threads: 2, context_tokens: Some(256), cpu_experts, ..LoadOptions::new(checkpoint(name)) }
}

async fn runtime(name: &str, cpu_experts: CpuExperts) -> Runtime {
    start(options(name, cpu_experts)).await
}

async fn start(options: LoadOptions) -> Runtime {
    tiny_runtime::start(options, RuntimeOptions::default()).await
}

/// The answers to requests that run at the same time.
async fn answers(runtime: &Runtime, seeds: &[u64]) -> Vec<Vec<(u32, u32)>> {
    let ask = |seed: &u64| {
        let (runtime, request) = (runtime.clone(), request(*seed, 0.8));
        tokio::spawn(async move { answer(&runtime, request).await })
    };
    let running: Vec<_> = seeds.iter().map(ask).collect();
    let mut answers = Vec::new();
    for task in running {
        answers.push(task.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_on_the_host_give_the_bits_of_experts_in_the_engine() {
    for name in ["qwen3moe.gguf", "qwen2moe.gguf", "mixtral-q4_0.gguf", "glm4moe.gguf"] {
        let in_engine = runtime(name, CpuExperts::Auto).await;
        let seeds = [1, 2, 3, 4, 5, 6];
        let mut expected = Vec::new();
        for seed in seeds {
            expected.extend(answers(&in_engine, &[seed]).await);
        }
        for cpu_experts in [CpuExperts::All, CpuExperts::Layers(1)] {
            let on_host = runtime(name, cpu_experts).await;
            assert_eq!(answers(&on_host, &seeds).await, expected, "{name} with experts of {cpu_experts}");
            // A second time: by now the executor also splits steps into two.
            assert_eq!(answers(&on_host, &seeds).await, expected, "{name} with experts of {cpu_experts}");
        }
    }
}

#[test]
fn the_plan_shows_which_device_has_which_experts() {
    let plan = plan(&options("qwen3moe.gguf", CpuExperts::Layers(2))).unwrap();
    let device = &plan.limits().device;
    assert!(device.contains("+ the experts of 2 of 3 layers on cpu ("), "{device}");
}

#[test]
fn a_model_without_experts_accepts_the_option_and_leaves_nothing_to_the_host() {
    let plan = plan(&options("qwen3.gguf", CpuExperts::All)).unwrap();
    assert!(!plan.limits().device.contains("experts"), "{}", plan.limits().device);
}

/// Options for a Vulkan device whose memory is smaller than the model; `None` without a device.
fn on_a_small_device(name: &str) -> Option<LoadOptions> {
    if !has_device() {
        return None;
    }
    let device = ComputeDevice::Vulkan(0);
    let whole = LoadOptions {
        device: device.into(),
        // Small steps, so the experts need more memory than the activations.
        max_batched_tokens: 64,
        ..options(name, CpuExperts::Layers(0))
    };
    let memory = plan(&whole).unwrap().memory().clone();
    let experts = 3 * 8 * 3 * 32 * 64 * 4;
    // Memory for everything except half of the experts, and a KV cache of one and a half contexts.
    let kv_bytes = 24 * memory.used.kv / memory.kv_blocks as u64;
    let device_bytes = Some(memory.used.weights - experts / 2 + memory.used.scratch + memory.used.text + kv_bytes);
    Some(LoadOptions { device_bytes, cpu_experts: CpuExperts::Auto, deterministic: true, ..whole })
}

/// Waits until a runtime has released its device: a driver must not be in use when the program ends.
async fn leave_device(runtime: &Runtime) {
    runtime.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_too_small_leaves_the_fewest_experts_to_the_host() {
    let Some(options) = on_a_small_device("qwen3moe.gguf") else { return };
    let small = plan(&options).unwrap();
    let device = small.limits().device.clone();
    assert!(
        device.contains("the experts of 1 of 3 layers") || device.contains("the experts of 2 of 3 layers"),
        "{device}"
    );
    let on_device = small.memory().pools.iter().find(|pool| pool.memory != MemoryId::Host).unwrap().used.total();
    assert!(on_device <= options.device_bytes.unwrap(), "{on_device} of {:?}", options.device_bytes);

    let seeds = [1, 2, 4];
    let on_cpu = answers(&runtime("qwen3moe.gguf", CpuExperts::Auto).await, &seeds).await;
    let runtime = start(options).await;
    let found = answers(&runtime, &seeds).await;
    for (found, expected) in found.iter().flatten().zip(on_cpu.iter().flatten()) {
        let logprob = |bits: u32| f32::from_bits(bits);
        assert_eq!(found.0, expected.0);
        assert!(
            (logprob(found.1) - logprob(expected.1)).abs() < 1e-2,
            "{found:?} on the device, {expected:?} on the CPU"
        );
    }
    let mut alone = Vec::new();
    for seed in seeds {
        alone.extend(answers(&runtime, &[seed]).await);
    }
    assert_eq!(alone, found, "the same bits alone and in a batch");
    leave_device(&runtime).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_clients_of_a_device_that_is_too_small_get_complete_answers() {
    let Some(options) = on_a_small_device("qwen3moe.gguf") else { return };
    let seeds: Vec<u64> = (1..=16).collect();
    let on_cpu = answers(&runtime("qwen3moe.gguf", CpuExperts::Auto).await, &seeds).await;
    // Deterministic without a cache, then an expert cache, then streaming too.
    let cache = LoadOptions {
        expert_cache_bytes: Some(200_000),
        device_bytes: options.device_bytes.map(|bytes| bytes + 200_000),
        cpu_experts: CpuExperts::All,
        deterministic: false,
        ..options.clone()
    };
    let streaming = LoadOptions { expert_streaming: ExpertStreaming::FromRows(16), ..cache.clone() };
    for options in [options, cache, streaming] {
        let runtime = start(options).await;
        let found = answers(&runtime, &seeds).await;
        let lengths = |answers: &[Vec<(u32, u32)>]| answers.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&found), lengths(&on_cpu));
        // Rounding may change a draw between two almost equal tokens; the rest of the text then differs.
        let mut same = 0;
        for (found, expected) in found.iter().zip(&on_cpu) {
            let pairs = || found.iter().zip(expected.iter());
            let common = pairs().take_while(|(found, expected)| found.0 == expected.0);
            for (found, expected) in common.clone() {
                let distance = (f32::from_bits(found.1) - f32::from_bits(expected.1)).abs();
                assert!(distance < 2e-2, "a log-probability differs by {distance} from the CPU's");
            }
            same += usize::from(common.count() == expected.len());
        }
        assert!(same >= 12, "only {same} of 16 texts equal those of the CPU");
        leave_device(&runtime).await;
    }
}

#[test]
fn a_device_too_small_for_the_other_weights_is_refused_with_the_numbers() {
    let Some(options) = on_a_small_device("qwen3moe.gguf") else { return };
    let error = plan(&LoadOptions { device_bytes: Some(100_000), ..options }).err().unwrap().to_string();
    assert!(error.contains("only 97.7 KiB"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_that_do_not_fit_in_memory_stay_in_the_file() {
    let whole = options("mixtral-q4_0.gguf", CpuExperts::Auto);
    let all = plan(&whole).unwrap().memory().clone();
    // A layer has 4 experts of three matrices [96, 64], with 18 bytes for 32 values; repacked, a few more.
    let layer = 4 * 3 * 96 * 64 / 32 * 18;
    for limit in [all.used.weights - layer / 2, all.used.weights - layer - layer / 2] {
        // A context of exactly 256 tokens.
        let kv_bytes = 16 * all.used.kv / all.kv_blocks as u64;
        let memory_bytes = limit + all.used.scratch + all.used.text + kv_bytes;
        let small = LoadOptions { memory_bytes: Some(memory_bytes), ..whole.clone() };
        let memory = plan(&small).unwrap().memory().clone();
        assert!(memory.total_bytes() <= memory_bytes, "{memory}");
        assert!(memory.in_file_bytes > 0 && memory.in_file_bytes.is_multiple_of(layer), "{memory}");
        assert!(memory.to_string().contains("of experts that stay in the file"), "{memory}");
        let on_demand = answers(&start(LoadOptions { expert_read_ahead: false, ..small.clone() }).await, &[1, 2]).await;
        // Experts in the file are computed in float32, others with 15-bit activations: similar, but not the same bits.
        let (near, found) = (start(options("mixtral-q4_0.gguf", CpuExperts::Auto)).await, start(small).await);
        let (near, found) = (answers(&near, &[1, 2]).await, answers(&found, &[1, 2]).await);
        let first = |answers: &[Vec<(u32, u32)>]| answers.iter().map(|tokens| tokens[0].0).collect::<Vec<_>>();
        assert_eq!(first(&near), first(&found));
        assert_eq!(found, on_demand, "read-ahead does not change bits");
    }
}

/// The error of loading a fixture with one number of its metadata changed.
fn refusal_with(name: &str, key: &str, value: u32) -> String {
    let mut bytes = std::fs::read(checkpoint(name)).unwrap();
    let end = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len();
    // The key is followed by the type, 4 for a u32, and the value.
    assert_eq!(bytes[end..end + 4], 4_u32.to_le_bytes());
    bytes[end + 4..end + 8].copy_from_slice(&value.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, bytes).unwrap();
    let options = LoadOptions { context_tokens: Some(64), ..LoadOptions::new(broken) };
    plan(&options).err().unwrap().to_string()
}

#[test]
fn experts_that_contradict_the_metadata_are_refused_by_name() {
    let refusal = |key: &str, value| refusal_with("qwen3moe.gguf", key, value);
    let wrong = refusal("qwen3moe.expert_count", 7);
    assert!(wrong.contains("\"blk.0.ffn_gate_inp.weight\" is [8, 64], but the metadata says [7, 64]"), "{wrong}");
    let wrong = refusal("qwen3moe.expert_feed_forward_length", 40);
    assert!(wrong.contains("\"blk.0.ffn_down_exps.weight\" is [512, 32], but the metadata says [512, 40]"), "{wrong}");
    let wrong = refusal("qwen3moe.expert_used_count", 9);
    assert!(wrong.contains("expert_used_count") && wrong.contains("at most 8"), "{wrong}");
    let wrong = refusal("qwen3moe.expert_count", 1 << 20);
    assert!(wrong.contains("expert_count") && wrong.contains("at most 4096"), "{wrong}");
    let wrong = refusal("qwen3moe.expert_count", 0);
    assert!(wrong.contains("a layer has a router of experts"), "{wrong}");
}
