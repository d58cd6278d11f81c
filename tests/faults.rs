//! Faults of the engine and of actors in a real server: with real weights, and at random with a tiny checkpoint.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --test faults -- --include-ignored --nocapture`

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::{Answer, ServerProcess, chat, random, text};

const STREAMS: usize = 16;

/// Runs sixteen streams and triggers a fault in between.
async fn answers(server: &Arc<ServerProcess>, fault: Option<&'static str>) -> Vec<Answer> {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let server = server.clone();
        let mut request = chat(&text(60, number as u64), 160);
        request["temperature"] = 0.into();
        streams.push(tokio::spawn(async move { server.stream(&request).await }));
    }
    if let Some(kind) = fault {
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.fault(kind).await;
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(stream.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn sixteen_streams_survive_a_fault_with_the_same_text() {
    let server = Arc::new(ServerProcess::start(&["--step-timeout", "10s"]).await);
    let expected = answers(&server, None).await;
    for kind in ["panic", "device_lost", "hang", "sampler", "scheduler"] {
        let begin = Instant::now();
        let received = answers(&server, Some(kind)).await;
        println!("{kind}: {:?} with the fault", begin.elapsed());
        for (received, expected) in received.iter().zip(&expected) {
            assert!(received.status == 200 && received.is_whole, "{kind}: {received:?}");
            assert_eq!(received.text, expected.text, "{kind}");
        }
        assert_eq!(server.get("/ready").await.0, 200);
    }
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 5.0, "all actors together");
}

/// Streams of a random run.
const RANDOM_STREAMS: u64 = 48;

/// Fewer than the restarts that a server allows within a minute.
const RANDOM_FAULTS: u64 = 8;

/// The file of a tiny checkpoint.
fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

/// Starts a server with a tiny checkpoint.
async fn tiny_server() -> Arc<ServerProcess> {
    let model = checkpoint("llama-q4_k.gguf");
    let flags = ["--device", "cpu", "--max-seqs", "8", "--ctx-size", "512", "--step-timeout", "2s"];
    Arc::new(ServerProcess::start_model(&model, &flags).await)
}

/// Asks the probes until it is aborted. They answer within a second, whatever happens.
async fn probe(server: Arc<ServerProcess>) {
    loop {
        for path in ["/health", "/ready"] {
            let begin = Instant::now();
            let (status, body) = server.get(path).await;
            assert!(begin.elapsed() < Duration::from_secs(1), "{path} took {:?}", begin.elapsed());
            assert!(status == 200 || (path == "/ready" && status == 503), "{path}: {status} {body}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One random run: streams, some of which leave early, and faults at random moments.
async fn random_run(seed: u64) {
    let server = tiny_server().await;
    let asked = |number: u64| chat(&text(10 + number as usize % 40, number), 300);
    let mut expected = Vec::new();
    for number in 0..RANDOM_STREAMS {
        expected.push(server.stream(&asked(number)).await);
    }
    let probing = tokio::spawn(probe(server.clone()));
    let mut streams = Vec::new();
    for number in 0..RANDOM_STREAMS {
        let server = server.clone();
        let pieces = if random(seed ^ number).is_multiple_of(4) { number as usize } else { usize::MAX };
        streams.push(tokio::spawn(async move {
            server.stream_while(&asked(number), |answer| answer.pieces.len() <= pieces).await
        }));
    }
    for fault in 0..RANDOM_FAULTS {
        let dice = random(seed << 32 | fault);
        tokio::time::sleep(Duration::from_millis(20 + dice % 400)).await;
        let kinds = ["panic", "device_lost", "hang", "sampler", "sampler", "scheduler", "scheduler", "loader"];
        server.fault(kinds[(dice >> 16) as usize % kinds.len()]).await;
    }
    // A request that loses its executor twice, the second time while it runs alone, counts as the cause.
    let mut blamed = 0;
    for (number, (stream, expected)) in streams.into_iter().zip(&expected).enumerate() {
        let answer = stream.await.unwrap();
        assert_eq!(answer.status, 200, "seed {seed}, stream {number}: {answer:?}");
        assert!(expected.text.starts_with(&answer.text), "seed {seed}, stream {number}: {answer:?}");
        let leaves = random(seed ^ number as u64).is_multiple_of(4);
        let is_blamed = answer.error["code"] == "engine_error";
        blamed += usize::from(is_blamed);
        assert!(
            leaves || is_blamed || (answer.is_whole && answer.text == expected.text),
            "seed {seed}, stream {number}: {answer:?}"
        );
    }
    assert!(blamed <= 3, "seed {seed}: {blamed} requests failed");
    server.assert_empties(Duration::from_secs(20)).await;
    assert!(!probing.is_finished(), "seed {seed}: {:?}", probing.await);
    probing.abort();
    println!("seed {seed}: {} restarts", server.metric("cuelight_actor_restarts_total").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_survives_the_death_of_the_scheduler_that_decides_about_it() {
    let server = tiny_server().await;
    let request = chat(&text(20, 1), 40);
    let expected = server.stream(&request).await;
    // The server is idle, so the scheduler dies when the next request arrives.
    server.fault("scheduler").await;
    let answer = server.stream(&request).await;
    assert!(answer.status == 200 && answer.is_whole, "{answer:?}");
    assert_eq!(answer.text, expected.text);
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_that_die_during_a_step_are_restarted_and_no_text_changes() {
    let flags = ["--device", "cpu", "--cpu-experts", "all", "--ctx-size", "256"];
    let server = ServerProcess::start_model(&checkpoint("qwen3moe.gguf"), &flags).await;
    let request = chat(&text(20, 1), 40);
    let expected = server.stream(&request).await;
    for deaths in 1..=3 {
        server.fault("experts").await;
        let answer = server.stream(&request).await;
        assert!(answer.status == 200 && answer.is_whole, "{answer:?}");
        assert_eq!(answer.text, expected.text);
        assert_eq!(server.metric("cuelight_actor_restarts_total").await, f64::from(deaths));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_that_hang_are_replaced_with_the_engine_and_no_text_changes() {
    let flags = ["--device", "cpu", "--cpu-experts", "all", "--ctx-size", "256", "--step-timeout", "2s"];
    let server = ServerProcess::start_model(&checkpoint("qwen3moe.gguf"), &flags).await;
    let request = chat(&text(20, 1), 40);
    let expected = server.stream(&request).await;
    server.fault("experts_hang").await;
    let answer = tokio::time::timeout(Duration::from_secs(60), server.stream(&request)).await.unwrap();
    assert!(answer.status == 200 && answer.is_whole, "{answer:?}");
    assert_eq!(answer.text, expected.text);
    assert_eq!(server.metric("cuelight_actor_restarts_total").await, 2.0, "the executor and the experts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_loses_nothing_under_random_faults() {
    let seed = std::env::var("CUELIGHT_CHAOS_SEED").ok().map(|text| text.parse().unwrap());
    let seeds = seed.map_or(0..3, |seed| seed..seed + 1);
    for seed in seeds {
        println!("CUELIGHT_CHAOS_SEED={seed}");
        random_run(seed).await;
    }
}
