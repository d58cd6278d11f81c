//! `cuelight serve --record` and `cuelight replay`: the same answers again, the first difference by its place, and no texts in a
//! recording unless they are asked for.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::ServerProcess;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-q8_0.gguf")
}

/// Records requests of several kinds, and one that its client gave up.
async fn record(directory: &Path, flags: &[&str]) {
    let directory = directory.to_str().unwrap();
    let flags = [&["--alias", "tiny", "--record", directory], flags].concat();
    let mut server = ServerProcess::start_model(&model(), &flags).await;
    let http = reqwest::Client::new();
    let url = format!("{}/v1/completions", server.url);
    let body = |index: usize, more: Value| {
        let prompt: Vec<usize> = (0..90 + index).map(|at| 5 + (at * at) % 480).collect();
        let mut body =
            json!({ "model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0.9, "logprobs": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (index, more) in [
        json!({}),
        json!({ "temperature": 0, "frequency_penalty": 0.5 }),
        json!({ "n": 2, "top_k": 20, "ignore_eos": true, "min_tokens": 4 }),
        json!({ "structured_outputs": { "regex": "[a-z]{4,9}" }, "stop": ["zz"] }),
        json!({ "logit_bias": { "7": 4.0 }, "seed": 5 }),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = http.post(&url).json(&body(index, more)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        answer.bytes().await.unwrap();
    }
    let endless = body(9, json!({ "max_tokens": 4000, "stream": true, "ignore_eos": true }));
    let mut stream = http.post(&url).json(&endless).send().await.unwrap();
    stream.chunk().await.unwrap();
    drop(stream);
    server.terminate();
    assert!(server.ended(std::time::Duration::from_secs(30)).await.success());
}

fn replay(recording: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.arg("replay").arg(recording).arg(model()).args(flags).output().unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// The only file of a recording, and its entries.
fn entries(directory: &Path) -> (PathBuf, Vec<Value>) {
    let files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let lines = fs::read_to_string(file).unwrap();
    (file.clone(), lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_again_and_a_difference_is_named() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), &["--record-texts"]).await;
    let (file, mut written) = entries(directory.path());
    assert_eq!(written.len(), 7);
    assert!(written.iter().any(|entry| entry["reason"] == "cancelled"));

    let equal = replay(directory.path(), &["--json"]);
    let result: Value = serde_json::from_slice(&equal.stdout).unwrap_or_else(|_| panic!("{}", text(&equal.stderr)));
    let expected =
        json!({ "requests": 7, "equal": 7, "differ": 0, "not_compared": 0, "failed": 0, "first_problem": null });
    assert_eq!(result, expected);
    for flags in [&["--parallel", "1"][..], &["--pace"]] {
        assert!(replay(directory.path(), flags).status.success());
    }

    written[2]["content"]["tokens"][3] = json!(1);
    let lines: String = written.iter().map(|entry| format!("{entry}\n")).collect();
    fs::write(&file, lines).unwrap();
    let differs = replay(directory.path(), &[]);
    assert_eq!(differs.status.code(), Some(1));
    assert!(text(&differs.stdout).contains("6 equal, 1 different"), "{}", text(&differs.stdout));
    let error = text(&differs.stderr);
    assert!(error.contains("request 3") && error.contains("token 3 of the answer: 1 "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_without_texts_has_none_and_repeats_the_load() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), &[]).await;
    let (_, written) = entries(directory.path());
    for entry in &written {
        assert!(entry.get("content").is_none(), "{entry}");
        assert_eq!(entry["blocks"][0], written[0]["blocks"][0], "the prompts begin alike");
    }
    let repeated = replay(directory.path(), &[]);
    assert!(repeated.status.success(), "{}", text(&repeated.stderr));
    assert!(text(&repeated.stdout).contains("7 without texts"), "{}", text(&repeated.stdout));
}

#[test]
fn what_is_no_recording_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, flags: &[&str], part: &str| {
        let output = replay(path, flags);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{error}");
    };
    refused(&directory.path().join("none"), &[], "cannot be read");
    refused(directory.path(), &[], "no recorded requests");
    let file = directory.path().join("a.jsonl");
    fs::write(&file, "{}\n").unwrap();
    refused(directory.path(), &[], "line 1");
    fs::write(&file, "{\"model\": \"a\"").unwrap();
    refused(&file, &[], "no recorded requests");
}
