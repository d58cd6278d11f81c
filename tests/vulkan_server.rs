//! Tests of a server whose model is on a Vulkan device. It must behave as on the CPU.
//!
//! The models have tiny random weights. Their texts are meaningless but deterministic.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/vulkan_device.rs"]
mod vulkan_device;

use server_process::{Answer, ServerProcess, chat, conversation, text};
use vulkan_device::has_device;

const STREAMS: usize = 16;

async fn server() -> Arc<ServerProcess> {
    server_on(&["--device", "vulkan"], &[]).await
}

/// Two replicas on two logical devices of one GPU, instead of on two GPUs.
async fn replicas() -> Arc<ServerProcess> {
    server_on(&["--device", "vulkan:0,vulkan:0", "--replicas", "2"], &[]).await
}

async fn server_on(devices: &[&str], variables: &[(&str, &str)]) -> Arc<ServerProcess> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-q4_k.gguf");
    let flags = ["--deterministic", "--ctx-size", "512", "--step-timeout", "60s"];
    Arc::new(ServerProcess::start_model_in(&model, &[devices, &flags].concat(), variables).await)
}

/// Runs sixteen streams concurrently.
async fn together(server: &Arc<ServerProcess>) -> Vec<Answer> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let server = server.clone();
        streams.push(tokio::spawn(async move { server.stream(&request(number)).await }));
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(stream.await.unwrap());
    }
    answers
}

fn request(number: usize) -> serde_json::Value {
    chat(&text(10 + 3 * number, number as u64), 40)
}

fn assert_same(received: &[Answer], expected: &[Answer]) {
    for (number, (received, expected)) in received.iter().zip(expected).enumerate() {
        assert!(received.status == 200 && received.is_whole, "stream {number}: {received:?}");
        assert_eq!(received.text, expected.text, "stream {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_streams_give_the_same_texts_as_alone() {
    if !has_device() {
        return;
    }
    let server = server().await;
    let mut alone = Vec::new();
    for number in 0..STREAMS {
        alone.push(server.stream(&request(number)).await);
    }
    assert!(alone.iter().all(|answer| !answer.text.is_empty()), "{alone:?}");
    assert_same(&together(&server).await, &alone);
    assert!(server.log().contains("vulkan:0"), "{}", server.log());
    server.assert_empties(Duration::from_secs(10)).await;
}

/// With float32 weights and cache, the logits of the device differ from those of the CPU only by rounding, which does not
/// change a token here.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_samples_gives_the_same_texts_as_the_cpu() {
    if !has_device() {
        return;
    }
    let asked = |sampling: serde_json::Value| {
        let mut request = chat(&text(20, 3), 30);
        let fields = request.as_object_mut().unwrap();
        fields.extend(sampling.as_object().unwrap().clone());
        request
    };
    let requests = [
        asked(json!({ "temperature": 0 })),
        asked(json!({ "temperature": 0.9, "seed": 11 })),
        asked(json!({ "temperature": 1.2, "seed": 12, "top_k": 30, "top_p": 0.9, "min_p": 0.01 })),
        // Sampled on the host on every device.
        asked(json!({ "temperature": 0.9, "seed": 13, "presence_penalty": 1.5 })),
    ];
    let (mut texts, mut logits) = (Vec::new(), Vec::new());
    for device in ["vulkan", "cpu"] {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama.gguf");
        let flags = ["--device", device, "--ctx-size", "512", "--kv-type", "f32", "--step-timeout", "60s"];
        let server = ServerProcess::start_model(&model, &flags).await;
        for request in &requests {
            let before = server.metric("cuelight_logits_bytes_total").await;
            let answer = server.call(request).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            texts.push(answer.text);
            logits.push(server.metric("cuelight_logits_bytes_total").await - before);
        }
    }
    let (device, processor) = texts.split_at(requests.len());
    assert_eq!(device, processor);
    assert!(device.iter().all(|text| !text.is_empty()) && device[0] != device[1], "{device:?}");
    assert_eq!(logits[..3], [0.0; 3], "the device returns tokens and no logits");
    assert!(logits[3..].iter().all(|bytes| *bytes > 0.0), "{logits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_leave_no_requests_behind() {
    if !has_device() {
        return;
    }
    let server = server().await;
    for number in 0..6 {
        let answer = server.stream_while(&chat(&text(30, number), 300), |answer| answer.pieces.len() < 3).await;
        assert!(!answer.is_whole, "{answer:?}");
    }
    server.assert_empties(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_message_of_a_conversation_finds_its_prefix() {
    if !has_device() {
        return;
    }
    let server = server().await;
    let question = json!({ "role": "user", "content": text(120, 1) });
    let first = server.call(&conversation(json!([question]), 24)).await;
    let answer = json!({ "role": "assistant", "content": first.text });
    let next = json!({ "role": "user", "content": "go on" });
    let second = server.call(&conversation(json!([question, answer, next]), 24)).await;
    let cached = second.usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 96, "{:?}", second.usage);
    // The same without a cached prefix: in another process, one request at a time.
    drop(server);
    let cold = self::server().await.call(&conversation(json!([question, answer, next]), 24)).await;
    assert_eq!(second.text, cold.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_give_the_same_texts_as_one_and_both_work() {
    if !has_device() {
        return;
    }
    let expected = together(&server().await).await;
    let server = replicas().await;
    assert!(server.log().contains("for 2 replicas"), "{}", server.log());
    assert_same(&together(&server).await, &expected);
    server.assert_empties(Duration::from_secs(10)).await;
    let (_, metrics) = server.get("/metrics").await;
    for replica in [0, 1] {
        let label = format!("replica=\"{replica}\"}} ");
        let of_replica = |name: &str| -> f64 {
            let is_it = |line: &&str| line.starts_with(name) && line.contains(&label);
            metrics.lines().find(is_it).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(of_replica("cuelight_kv_blocks_cached{") > 20.0, "replica {replica} had little to do:\n{metrics}");
        assert_eq!(of_replica("cuelight_replica_ready{"), 1.0);
    }
    let (_, models) = server.get("/models").await;
    let models: serde_json::Value = serde_json::from_str(&models).unwrap();
    let model = &models["data"][0];
    assert_eq!(model["device"].as_str().unwrap().matches("vulkan:0").count(), 2, "{model}");
    assert_eq!(model["max_sequences"], 32);
    // A conversation continues on its replica, although the other one has been idle for longer.
    let question = json!({ "role": "user", "content": text(100, 77) });
    let first = server.call(&conversation(json!([question]), 24)).await;
    let answer = json!({ "role": "assistant", "content": first.text });
    let next = json!({ "role": "user", "content": "go on" });
    let second = server.call(&conversation(json!([question, answer, next]), 24)).await;
    let cached = second.usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached.is_some_and(|cached| cached >= 96), "{second:?}");
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_recovers_from_a_lost_device_while_the_server_stays_ready() {
    if !has_device() {
        return;
    }
    let expected = together(&server().await).await;
    let server = replicas().await;
    let streams = tokio::spawn({
        let server = server.clone();
        async move { together(&server).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.fault("device_lost").await;
    while !streams.is_finished() {
        let (status, answer) = server.get("/ready").await;
        assert_eq!(status, 200, "{answer}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_same(&streams.await.unwrap(), &expected);
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 1.0);
    assert_eq!(server.metric("cuelight_replica_ready").await, 2.0);
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_is_reopened_and_no_request_fails() {
    if !has_device() {
        return;
    }
    let server = server().await;
    let expected = together(&server).await;
    for kind in ["device_lost", "panic"] {
        let streams = tokio::spawn({
            let server = server.clone();
            async move { together(&server).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.fault(kind).await;
        assert_same(&streams.await.unwrap(), &expected);
    }
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 2.0);
}

/// An error of the driver reaches the server, and the objects of the lost device are destroyed before the device. The
/// validation layer checks that.
#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_device_lost_by_its_driver_is_destroyed_properly_and_texts_are_unchanged() {
    if !has_device() {
        return;
    }
    // The server opens its devices in another process, so the Vulkan loader inserts the layer, which writes to a file.
    let folder = tempfile::tempdir().unwrap();
    let (settings, complaints) = (folder.path().join("vk_layer_settings.txt"), folder.path().join("complaints"));
    let lines = [
        format!("khronos_validation.log_filename = {}", complaints.display()),
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG".to_owned(),
        "khronos_validation.report_flags = error,warn".to_owned(),
        "khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT".to_owned(),
    ];
    std::fs::write(&settings, lines.join("\n")).unwrap();
    let layer = ("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");
    let server =
        server_on(&["--device", "vulkan"], &[layer, ("VK_LAYER_SETTINGS_PATH", settings.to_str().unwrap())]).await;
    let loaded = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
    if !loaded.contains("VkLayer_khronos_validation") {
        eprintln!("SKIPPED: the Vulkan validation layer is not installed");
    }

    let expected = together(&server).await;
    for (number, kind) in (1..).zip(["lost_at_submit", "lost_at_wait", "lost_at_timeline"]) {
        let before = server.metric("cuelight_generation_tokens_total").await;
        let streams = tokio::spawn({
            let server = server.clone();
            async move { together(&server).await }
        });
        while server.metric("cuelight_generation_tokens_total").await < before + (STREAMS * 10) as f64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.fault(kind).await;
        assert_same(&streams.await.unwrap(), &expected);
        assert_eq!(server.metric("cuelight_actor_restarts_total").await, f64::from(number), "{kind}");
    }
    let log = server.log();
    assert!(log.contains("the driver reports that the device was lost"), "{log}");
    server.assert_empties(Duration::from_secs(10)).await;
    let complaints = std::fs::read_to_string(complaints).unwrap_or_default();
    assert!(complaints.trim().is_empty(), "the validation layer reported errors:\n{complaints}");
}
