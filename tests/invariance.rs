//! A row's result never depends on its batch. Through the whole actor tree and with a real engine, a request gives the same
//! tokens and the same bits of log-probability, whichever requests run at the same time and however its prompt is chunked.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::load::{ComputeDevice, LoadOptions, plan};

#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use test_seed::of_the_day;
use tiny_runtime::{answer, checkpoint, request, start};
use vulkan_device::has_device;

/// A runtime with a tiny checkpoint. A small KV cache forces preemption when many requests run. With few slots for recurrent
/// state requests wait, and checkpoints are evicted.
async fn runtime(
    name: &str,
    device: ComputeDevice,
    prefill_chunk_tokens: usize,
    (kv_blocks, slots): (Option<u64>, Option<u64>),
) -> Runtime {
    let mut options = LoadOptions {
        threads: 2,
        context_tokens: Some(256),
        device: device.into(),
        // The CPU is always deterministic.
        deterministic: device != ComputeDevice::Cpu,
        ..LoadOptions::new(checkpoint(name))
    };
    let memory = plan(&options).unwrap().memory().clone();
    if let Some(blocks) = kv_blocks {
        options.kv_bytes = Some(memory.used.kv / memory.kv_blocks as u64 * blocks);
    }
    if let Some(slots) = slots.filter(|_| memory.state_slots > 0) {
        options.state_bytes = Some(memory.used.state / memory.state_slots as u64 * slots);
    }
    let policy = PolicyConfig { prefill_chunk_tokens, steps_in_flight: 1, ..PolicyConfig::default() };
    start(options, RuntimeOptions { policy, ..RuntimeOptions::default() }).await
}

async fn check(name: &str, device: ComputeDevice, temperature: f32) {
    let alone = runtime(name, device, 512, (None, None)).await;
    let mut expected = Vec::new();
    for seed in 0..17 {
        expected.push(answer(&alone, request(seed, temperature)).await);
    }
    alone.shutdown(Duration::ZERO).await;
    // With 20 blocks not all seventeen sequences fit: some are preempted and recomputed.
    for (chunk, kv_blocks) in [(1, None), (7, None), (512, None), (7, Some(20))] {
        let batched = runtime(name, device, chunk, (kv_blocks, Some(if chunk == 512 { 5 } else { 60 }))).await;
        let running = (0..17).map(|seed| {
            let batched = batched.clone();
            tokio::spawn(async move { answer(&batched, request(seed, temperature)).await })
        });
        let running: Vec<_> = running.collect();
        for (seed, task) in running.into_iter().enumerate() {
            assert_eq!(
                task.await.unwrap(),
                expected[seed],
                "{name}, request {seed}, chunks of {chunk}, blocks {kv_blocks:?}"
            );
        }
        batched.shutdown(Duration::ZERO).await;
    }
}

/// The same if layers with windows keep no more than these. The second time the beginnings of the requests are in the cache, with the
/// window before some places in them.
async fn check_windows(name: &str, device: ComputeDevice) {
    let whole = runtime(name, device, 512, (None, None)).await;
    let mut expected = Vec::new();
    for seed in 0..17 {
        expected.push(answer(&whole, request(seed, 0.8)).await);
    }
    whole.shutdown(Duration::ZERO).await;
    for (chunk, context_tokens) in [(1, 1024), (512, 1024), (7, 256)] {
        let options = LoadOptions {
            threads: 2,
            context_tokens: Some(context_tokens),
            max_sequences: 4,
            max_batched_tokens: 32,
            keeps_windows: true,
            device: device.into(),
            deterministic: device != ComputeDevice::Cpu,
            ..LoadOptions::new(checkpoint(name))
        };
        let planned = plan(&options).unwrap();
        assert!(planned.memory().window_blocks.is_some_and(|blocks| blocks < planned.memory().kv_blocks), "{name}");
        let policy = PolicyConfig { prefill_chunk_tokens: chunk, ..PolicyConfig::default() };
        let batched = start(options, RuntimeOptions { policy, ..RuntimeOptions::default() }).await;
        for round in 0..2 {
            let running = (0..17).map(|seed| {
                let batched = batched.clone();
                tokio::spawn(async move { answer(&batched, request(seed, 0.8)).await })
            });
            let running: Vec<_> = running.collect();
            for (seed, task) in running.into_iter().enumerate() {
                let found = task.await.unwrap();
                assert_eq!(found, expected[seed], "{name}, request {seed}, chunks of {chunk}, round {round}");
            }
        }
        batched.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_the_same_bits_if_layers_keep_windows() {
    check_windows("gemma3-q5_0.gguf", ComputeDevice::Cpu).await;
    check_windows("gpt-oss.gguf", ComputeDevice::Cpu).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_vulkan_have_the_same_bits_if_layers_keep_windows() {
    if has_device() {
        check_windows("gemma3-q5_0.gguf", ComputeDevice::Vulkan(0)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_requests_give_the_same_bits_alone_and_in_a_batch() {
    check("llama-q4_0.gguf", ComputeDevice::Cpu, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_requests_give_the_same_bits_alone_and_in_a_batch() {
    check("qwen2-k-mixed.gguf", ComputeDevice::Cpu, 0.8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_windows_and_soft_caps_give_the_same_bits_alone_and_in_a_batch() {
    check("gemma2.gguf", ComputeDevice::Cpu, 0.0).await;
    check("gemma3-q5_0.gguf", ComputeDevice::Cpu, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_attend_to_selected_positions_give_the_same_bits_alone_and_in_a_batch() {
    check("deepseek32.gguf", ComputeDevice::Cpu, 0.8).await;
    check("glm-dsa.gguf", ComputeDevice::Cpu, 0.0).await;
    check("glm5-next.gguf", ComputeDevice::Cpu, 0.8).await;
    check("qwen4exp.gguf", ComputeDevice::Cpu, 0.8).await;
    check("deepseek4.gguf", ComputeDevice::Cpu, 0.8).await;
    check("minimax-m3.gguf", ComputeDevice::Cpu, 0.8).await;
    check("hy_v4.gguf", ComputeDevice::Cpu, 0.8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_recurrent_state_give_the_same_bits_alone_and_in_a_batch() {
    check("qwen35moe.gguf", ComputeDevice::Cpu, 0.7).await;
    check("qwen3next.gguf", ComputeDevice::Cpu, 0.0).await;
    check("kimi-k3.gguf", ComputeDevice::Cpu, 0.8).await;
    // Without layers that attend, blocks have no bytes.
    check("mamba.gguf", ComputeDevice::Cpu, 0.7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deterministic_requests_on_vulkan_give_the_same_bits_alone_and_in_a_batch() {
    // A software device compiles the shaders of a model for tens of seconds.
    if !has_device() {
        return;
    }
    let models = [
        "llama-q4_0.gguf",
        "qwen35.gguf",
        "glm-dsa.gguf",
        "glm5-next.gguf",
        "qwen4exp.gguf",
        "deepseek4.gguf",
        "minimax-m3.gguf",
        "hy_v4.gguf",
        "kimi-k3.gguf",
    ];
    for model in of_the_day(models, 8) {
        check(model, ComputeDevice::Vulkan(0), 0.8).await;
    }
}
