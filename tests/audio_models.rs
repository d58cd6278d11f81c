//! `cuelight serve` and `cuelight run` with audio encoders: log-probabilities and answers of tiny models, compared with transformers
//! through the HTTP API.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "support/clip.rs"]
mod clips;
#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/wav.rs"]
mod wav_file;

use clips::clip;
use server_process::ServerProcess;
use wav_file::wav;

/// Largest difference of a log-probability, in nats.
const GATE: f64 = 2e-3;

const FAMILIES: [&str; 6] = ["gemma4a", "qwen2a", "qwen2.5o", "qwen3a", "ultravox", "voxtral"];

/// The expected values of a model, of which `tests/generate/audio.py` writes more.
#[derive(Deserialize)]
struct Expected {
    clips: Vec<Clip>,
    prompts: Vec<ExpectedPrompt>,
}

#[derive(Deserialize)]
struct Clip {
    samples: usize,
}

#[derive(Deserialize)]
struct ExpectedPrompt {
    tokens: Vec<u32>,
    /// The most likely tokens after the prompt.
    top: Vec<(u32, f64)>,
}

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio").join(family)
}

fn expected(family: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(folder(family).join("expected.json")).unwrap()).unwrap()
}

/// A clip of the generator as a WAV file.
fn file(Clip { samples }: &Clip) -> Vec<u8> {
    wav(&clip(*samples))
}

async fn start(family: &str, projector: &str) -> ServerProcess {
    let mmproj = folder(family).join(projector);
    let flags = ["--alias", "model", "--mmproj", mmproj.to_str().unwrap(), "--kv-type", "f32"];
    ServerProcess::start_model(&folder(family).join("text.gguf"), &flags).await
}

async fn ask(server: &ServerProcess, clip: &Clip) -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let audio =
        json!({ "type": "input_audio", "input_audio": { "data": STANDARD.encode(file(clip)), "format": "wav" } });
    let content = json!([text("The harbour "), audio, text(" was quiet before the storm.")]);
    let body = json!({
        "model": "model", "messages": [{ "role": "user", "content": content }], "max_tokens": 4, "temperature": 0,
        "ignore_eos": true, "logprobs": true, "top_logprobs": 5, "return_token_ids": true, "return_tokens_as_token_ids": true,
    });
    let url = format!("{}/v1/chat/completions", server.url);
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{text}\n{}", server.log());
    serde_json::from_str(&text).unwrap()
}

/// Asks about the clip of the fixtures and checks the answer.
async fn check(server: &ServerProcess, clip: &Clip, prompt: &ExpectedPrompt, family: &str) {
    let answer = ask(server, clip).await;
    assert_eq!(answer["prompt_token_ids"], json!(prompt.tokens), "{family}");
    let found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap();
    for (token, expected) in &prompt.top {
        let name = format!("token_id:{token}");
        let found = found.iter().find(|found| found["token"] == name.as_str()).unwrap();
        let found = found["logprob"].as_f64().unwrap();
        assert!((found - expected).abs() < GATE, "{family}: {name} has {found} instead of {expected}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_all_that_a_model_needs() {
    for (family, directory) in [
        ("gemma4a", "directory"),
        ("qwen2a", "directory"),
        ("qwen2.5o", "directory"),
        ("qwen3a", "directory"),
        ("qwen3a", "directory-thinker"),
        ("voxtral", "directory"),
    ] {
        let Expected { clips, prompts } = expected(family);
        let directory = folder(family).join(directory);
        let server = ServerProcess::start_model(&directory, &["--alias", "model", "--kv-type", "f32"]).await;
        check(&server, &clips[0], &prompts[0], family).await;
    }
    // That of Ultravox has no language model.
    let Expected { clips, prompts } = expected("ultravox");
    check(&start("ultravox", "directory").await, &clips[0], &prompts[0], "ultravox").await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
    command.arg("run").arg(folder("ultravox").join("directory")).arg("What is this?").stdin(Stdio::null());
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    let is_explained = message.contains("lacks the weights of \"org/text\"") && message.contains("--mmproj");
    assert!(!output.status.success() && is_explained, "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_a_clip_are_those_of_transformers() {
    for family in FAMILIES {
        let Expected { clips, prompts } = expected(family);
        let server = start(family, "mmproj.gguf").await;
        let encoder = match family {
            "gemma4a" => "audio: Gemma 4 conformer",
            "qwen2.5o" => "audio: Qwen 2.5 Omni Whisper",
            "qwen3a" => "audio: Qwen 3 AuT",
            _ => "audio: Whisper",
        };
        assert!(server.log().contains(encoder), "{}", server.log());
        for _ in 0..2 {
            check(&server, &clips[0], &prompts[0], family).await;
        }
        assert_eq!(server.metric("cuelight_audio_cache_hits_total").await, 1.0);
        assert_eq!(server.metric("cuelight_audio_windows_encoded_total").await, 1.0);
        // A clip of two windows; Gemma 4 has one for each clip.
        ask(&server, &clips[2]).await;
        let windows = if family == "gemma4a" { 2.0 } else { 3.0 };
        assert_eq!(server.metric("cuelight_audio_windows_encoded_total").await, windows);
    }
}

#[test]
fn one_clip_is_asked_about_in_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let clip = directory.path().join("harbour.wav");
    std::fs::write(&clip, file(&expected("voxtral").clips[0])).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
        command.arg("run").arg(folder("voxtral").join("text.gguf"));
        command.arg("--mmproj").arg(folder("voxtral").join("mmproj.gguf"));
        command.args(["--max-tokens", "5", "--temp", "0", "--verbose"]).args(more);
        let output = command.arg("What is this?").stdin(Stdio::null()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_answered, log) = run(&["--audio", clip.to_str().unwrap()]);
    assert!(is_answered && log.contains("audio: "), "{log}");
    let (is_answered, log) = run(&["--audio", "/no/such/clip.wav"]);
    assert!(!is_answered && log.contains("/no/such/clip.wav"), "{log}");
    let (is_answered, log) = run(&["--no-mmproj", "--audio", clip.to_str().unwrap()]);
    assert!(!is_answered && log.contains("takes no audio"), "{log}");
    let (is_answered, log) = run(&["--image", clip.to_str().unwrap()]);
    assert!(!is_answered && log.contains("takes no images"), "{log}");
}
