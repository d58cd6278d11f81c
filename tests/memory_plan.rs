//! The memory of a server stays within its plan: while it loads, scores a long prompt, and answers clients.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --test memory_plan -- --ignored --nocapture`, with the files of
//! `tests/fetch_models.py`. It prints the plan and the peak of each phase.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use serde_json::{Value, json};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::{ServerProcess, text};

const MODELS: [&str; 3] =
    ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m.Q4_K_M.gguf", "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf"];

/// The KV cache is small, so that the load fills it: memory that no request touches would hide an error of the plan.
/// So is the memory for the bodies of requests, and nothing is stored.
const FLAGS: [&str; 8] =
    ["--ctx-size", "1024", "--max-seqs", "16", "--request-memory", "16MiB", "--response-store", "0"];

/// Bytes in a line of the printed plan, in MiB.
fn planned_mib(log: &str, name: &str) -> f64 {
    let line =
        log.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_else(|| panic!("{name} in\n{log}"));
    let (number, unit) = line.trim().split_once(' ').unwrap();
    let unit = unit.split_whitespace().next().unwrap();
    number.parse::<f64>().unwrap()
        * [("KiB", 1.0 / 1024.0), ("MiB", 1.0), ("GiB", 1024.0)].iter().find(|(name, _)| *name == unit).unwrap().1
}

/// The largest resident memory since the last reset, in MiB.
fn peak_mib(server: &ServerProcess) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

fn reset_peak(server: &ServerProcess) {
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").unwrap();
}

async fn complete(url: String, body: Value) {
    let response = reqwest::Client::new().post(format!("{url}/v1/completions")).json(&body).send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
}

/// One request for each body, all at the same time.
async fn together(server: &ServerProcess, bodies: impl Iterator<Item = Value>) {
    let requests: Vec<_> = bodies.map(|body| tokio::spawn(complete(server.url.clone(), body))).collect();
    for request in requests {
        request.await.unwrap();
    }
}

async fn peaks_stay_within_the_plan(model: &str) {
    let folder =
        std::env::var_os("CUELIGHT_TEST_MODELS").expect("CUELIGHT_TEST_MODELS names the folder with the models");
    let server = ServerProcess::start_model(&PathBuf::from(folder).join(model), &FLAGS).await;
    let log = server.log();
    let plan = log.split_once("memory plan").unwrap().1;
    // The server may be ready just before it says so.
    let plan = plan.split("ready:").next().unwrap_or(plan).to_owned();
    println!("{model}: memory plan{}", plan.split("20").next().unwrap_or(&plan));
    let planned = planned_mib(&log, "process");
    // Sixteen would take the large model minutes.
    let clients = if model == MODELS[2] { 2 } else { 16 };
    let mut failures = Vec::new();
    let mut check = |phase: &str| {
        let peak = peak_mib(&server);
        println!("| {model} | {phase} | {planned:.1} | {peak:.1} |");
        failures.extend((peak > planned).then(|| format!("{phase}: {peak:.1} MiB of {planned:.1} planned")));
        reset_peak(&server);
    };
    check("load");
    complete(
        server.url.clone(),
        json!({ "model": "default", "prompt": text(950, 1), "max_tokens": 1, "prompt_logprobs": 5 }),
    )
    .await;
    check("a prompt with log-probabilities");
    let chat = |seed| json!({ "model": "default", "prompt": text(450, seed), "max_tokens": 64, "ignore_eos": true, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1 });
    together(&server, (0..clients).map(chat)).await;
    check("clients");
    let scored = |seed: u64| json!({ "model": "default", "prompt": text(200, 100 + seed), "max_tokens": 8, "logprobs": 5, "prompt_logprobs": 5 });
    together(&server, (0..clients).map(scored)).await;
    check("clients with log-probabilities");
    assert!(failures.is_empty(), "{model}: {failures:?}\n{plan}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn smollm2_stays_within_its_plan() {
    peaks_stay_within_the_plan(MODELS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn gemma_3_stays_within_its_plan() {
    peaks_stay_within_the_plan(MODELS[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn qwen2_5_coder_stays_within_its_plan() {
    peaks_stay_within_the_plan(MODELS[2]).await;
}
