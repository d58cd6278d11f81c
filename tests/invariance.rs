//! One row's arithmetic never depends on its neighbours: through the whole cast, on the real engine, the same request
//! gives the same tokens and the same bits of log-probability whatever runs beside it and however its prompt is cut.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cuelight::policy::PolicyConfig;
use cuelight::runtime::{Runtime, RuntimeOptions};
use cuelight_engine::load::{ComputeDevice, LoadOptions, plan};

#[path = "support/tiny_runtime.rs"]
mod tiny_runtime;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use tiny_runtime::{answer, checkpoint, request, start};
use vulkan_device::has_device;

/// A runtime over a tiny checkpoint. A small cache forces preemption when many run.
async fn runtime(name: &str, device: ComputeDevice, prefill_chunk_tokens: usize, kv_blocks: Option<u64>) -> Runtime {
    let mut options = LoadOptions {
        threads: 2,
        context_tokens: Some(256),
        device: device.into(),
        // On the CPU that is so without being asked for.
        deterministic: device != ComputeDevice::Cpu,
        ..LoadOptions::new(checkpoint(name))
    };
    if let Some(blocks) = kv_blocks {
        let memory = plan(&options).unwrap().memory().clone();
        options.kv_bytes = Some(memory.kv_bytes / memory.kv_blocks as u64 * blocks);
    }
    let policy = PolicyConfig { prefill_chunk_tokens, steps_in_flight: 1, ..PolicyConfig::default() };
    start(options, RuntimeOptions { policy, ..RuntimeOptions::default() }).await
}

async fn check(name: &str, device: ComputeDevice, temperature: f32) {
    let alone = runtime(name, device, 512, None).await;
    let mut expected = Vec::new();
    for seed in 0..17 {
        expected.push(answer(&alone, request(seed, temperature)).await);
    }
    alone.shutdown(Duration::ZERO).await;
    // With 20 blocks the seventeen cannot all stay: some are preempted and computed again.
    for (chunk, kv_blocks) in [(1, None), (7, None), (512, None), (7, Some(20))] {
        let crowded = runtime(name, device, chunk, kv_blocks).await;
        let running = (0..17).map(|seed| {
            let crowded = crowded.clone();
            tokio::spawn(async move { answer(&crowded, request(seed, temperature)).await })
        });
        let running: Vec<_> = running.collect();
        for (seed, task) in running.into_iter().enumerate() {
            assert_eq!(
                task.await.unwrap(),
                expected[seed],
                "{name}, request {seed}, chunks of {chunk}, blocks {kv_blocks:?}"
            );
        }
        crowded.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_requests_give_the_same_bits_alone_and_in_a_crowd() {
    check("llama-q4_0.gguf", ComputeDevice::Cpu, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_requests_give_the_same_bits_alone_and_in_a_crowd() {
    check("qwen2-k-mixed.gguf", ComputeDevice::Cpu, 0.8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_and_caps_change_nothing_about_it() {
    check("gemma2.gguf", ComputeDevice::Cpu, 0.0).await;
    check("gemma3-q5_0.gguf", ComputeDevice::Cpu, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_a_vulkan_device_give_the_same_bits_alone_and_in_a_crowd_when_asked_to() {
    if has_device() {
        check("llama-q4_0.gguf", ComputeDevice::Vulkan(0), 0.8).await;
    }
}
