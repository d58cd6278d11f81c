//! `--draft MODEL`: the same answers in fewer steps, and what cannot be a draft model is refused at the start.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::ServerProcess;

fn family(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

async fn start(flags: &[&str]) -> ServerProcess {
    ServerProcess::start_model(&family("llama-q8_0.gguf"), &[&["--alias", "model"], flags].concat()).await
}

/// The token ids of an answer of 40 tokens to a prompt that does not repeat itself.
async fn complete(server: &ServerProcess, salt: u32, temperature: f32) -> Value {
    let prompt: Vec<u32> = (0..30).map(|index| 5 + (index * index + salt * 31) % 480).collect();
    let body = json!({
        "model": "model", "prompt": prompt, "max_tokens": 40, "temperature": temperature, "seed": 1, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 1,
    });
    let sent = reqwest::Client::new().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    let answer: Value = sent.json().await.unwrap();
    assert_eq!(answer["choices"][0]["token_ids"].as_array().map(Vec::len), Some(40), "{answer}");
    answer["choices"][0].clone()
}

/// The answers to several requests at the same time.
async fn answers(server: &ServerProcess) -> Vec<Value> {
    let all = (0..6).map(|salt| complete(server, salt, if salt % 2 == 0 { 0.0 } else { 0.8 }));
    futures_util::future::join_all(all).await
}

async fn metric(server: &ServerProcess, name: &str) -> f64 {
    let (_, text) = server.get("/metrics").await;
    let line = text.lines().find(|line| line.starts_with(name) && line.contains("source=\"draft_model\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Answers until the draft model is loaded and this metric of it counts, and returns the last ones.
async fn drafted(server: &ServerProcess, counts: &str) -> Vec<Value> {
    for _ in 0..50 {
        let answers = answers(server).await;
        if metric(server, counts).await > 0.0 {
            return answers;
        }
    }
    panic!("{counts} does not count");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_changes_no_bit_of_an_answer() {
    let plain = start(&["--speculate", "off"]).await;
    let expected = answers(&plain).await;
    drop(plain);
    let [drafts, accepted] = ["cuelight_draft_tokens_total", "cuelight_accepted_draft_tokens_total"];
    // The same model is always right, another one hardly ever.
    for (draft, counts) in [("llama-q8_0.gguf", accepted), ("llama-q4_0.gguf", drafts)] {
        let draft = family(draft).display().to_string();
        let server = start(&["--draft", &draft, "--speculate", "draft", "--draft-kv-memory", "1MiB"]).await;
        assert_eq!(drafted(&server, counts).await, expected, "{draft}");
        let (drafts, accepted) = (metric(&server, drafts).await, metric(&server, accepted).await);
        assert!(accepted <= drafts, "{accepted} of {drafts}");
        let (_, models) = server.get("/models").await;
        let models: Value = serde_json::from_str(&models).unwrap();
        assert!(models.to_string().contains("draft_bytes"), "{models}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_speculation_the_draft_model_is_not_loaded() {
    let draft = family("llama-q8_0.gguf").display().to_string();
    let server = start(&["--draft", &draft, "--speculate", "off"]).await;
    answers(&server).await;
    assert_eq!(metric(&server, "cuelight_drafts_total").await, 0.0);
}

/// The exit code and the messages of a server that does not start.
fn refused(arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    let home = tempfile::tempdir().unwrap();
    command.args(["serve", "--port", "0"]).args(arguments).env_clear().env("HOME", home.path());
    let output = command.env("CUELIGHT_CALIBRATE", "off").stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_cannot_be_a_draft_model_is_refused_at_the_start() {
    let [model, recurrent, other, missing] = ["llama-q8_0.gguf", "qwen35.gguf", "gemma3.gguf", "missing.gguf"]
        .map(|name| family(name).display().to_string());
    for (arguments, code, words) in [
        (&[&*model, "--draft", &recurrent][..], 2, "recurrent state"),
        (&[&model, "--draft", &other], 2, "does not have the vocabulary"),
        (&[&model, "--draft", &missing], 1, "missing.gguf"),
        (&[&model, "--speculate", "draft"], 2, "add --draft"),
        (&[&model, "a=demo", "--draft", &model], 2, "name exactly one"),
        (&[&model, "--draft", &model, "--draft-kv-memory", "1"], 1, "memory"),
        (&[&model, "--draft", &model, "--draft-device", "gpu"], 2, "unknown device"),
    ] {
        let (exit, text) = refused(arguments);
        assert!(exit == code && text.contains(words), "{arguments:?}: {exit}, {text}");
    }
}
