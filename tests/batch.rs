//! `cuelight batch`: every request of a file has one answer, as a server gives it, and an interrupted run is continued.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama-q8_0.gguf")
}

/// A file of requests, and the file of their answers.
struct Batch {
    directory: TempDir,
}

impl Batch {
    fn new(requests: &[Value]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lines: Vec<String> = requests.iter().map(Value::to_string).collect();
        fs::write(directory.path().join("requests.jsonl"), lines.join("\n")).unwrap();
        Batch { directory }
    }

    /// The answers so far.
    fn lines(&self) -> usize {
        fs::read_to_string(self.answers_file()).unwrap_or_default().lines().count()
    }

    fn answers_file(&self) -> PathBuf {
        self.directory.path().join("answers.jsonl")
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        let (requests, answers) = (self.directory.path().join("requests.jsonl"), self.answers_file());
        command.arg("batch").arg(model()).arg(requests).arg(answers).args(flags);
        command
    }

    fn run(&self, flags: &[&str]) -> Output {
        self.command(flags).output().unwrap()
    }

    /// The answers by the ids of their requests.
    fn answers(&self) -> HashMap<String, Value> {
        let lines = fs::read_to_string(self.answers_file()).unwrap();
        let answers = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let by_id: HashMap<String, Value> =
            answers.map(|answer| (answer["custom_id"].as_str().unwrap().to_owned(), answer)).collect();
        assert_eq!(by_id.len(), lines.lines().count(), "a request has two answers");
        by_id
    }
}

fn request(id: &str, url: &str, body: Value) -> Value {
    json!({ "custom_id": id, "method": "POST", "url": url, "body": body })
}

fn completion(id: &str, more: Value) -> Value {
    let prompt: Vec<usize> = (0..20).map(|at| 5 + (at * at + id.len()) % 480).collect();
    let mut body = json!({ "model": "gpt-5", "prompt": prompt, "max_tokens": 8, "seed": 3, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request(id, "/v1/completions", body)
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn requests_of_all_routes_are_answered_and_failures_are_counted() {
    let batch = Batch::new(&[
        completion("first", json!({})),
        completion("same", json!({ "prompt": (0..20).map(|at| 5 + (at * at + 5) % 480).collect::<Vec<usize>>() })),
        completion("two", json!({ "n": 2 })),
        request("too long", "/v1/completions", json!({ "prompt": vec![7; 100_000] })),
        request(
            "message",
            "/v1/messages",
            json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "a" }] }),
        ),
        completion("wrong", json!({ "temperature": "hot" })),
    ]);
    let output = batch.run(&["--parallel", "3"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let answers = batch.answers();
    let status = |id: &str| answers[id]["response"]["status_code"].as_u64().unwrap();
    assert_eq!(["first", "same", "two", "too long", "wrong"].map(status), [200, 200, 200, 400, 400]);
    let failed = answers.keys().filter(|id| status(id) != 200).count();
    assert!(errors.contains(&format!("{failed} of 6 requests failed; the first: \"")), "{errors}");
    assert!(errors.contains("6 of 6 requests have an answer"), "{errors}");
    let body = |id: &str| &answers[id]["response"]["body"];
    assert_eq!(body("first")["model"], "llama-q8_0", "the model that answered");
    assert_eq!(body("first")["usage"]["completion_tokens"], 8);
    assert_eq!(body("two")["choices"].as_array().unwrap().len(), 2);
    assert_eq!(body("first")["choices"], body("same")["choices"], "the same request gives the same answer");
    assert!(body("wrong")["error"]["message"].as_str().unwrap().contains("temperature"));
    assert_eq!((&answers["first"]["error"], output.stdout.len()), (&Value::Null, 0));
    assert!(answers["first"]["response"]["request_id"].as_str().unwrap().starts_with("req_"));
}

#[test]
fn an_interrupted_batch_is_continued() {
    let batch = long_batch();
    let mut child = started(&batch, &["--parallel", "1"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(batch.lines() < 40, "it was not interrupted");
    // As after a crash in the middle of a write.
    let mut file = fs::OpenOptions::new().append(true).open(batch.answers_file()).unwrap();
    file.write_all(b"{\"id\": \"batch_re").unwrap();
    drop(file);
    let first: HashMap<String, Value> = {
        let lines = fs::read_to_string(batch.answers_file()).unwrap();
        let whole = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        whole.map(|answer| (answer["custom_id"].as_str().unwrap().to_owned(), answer)).collect()
    };
    let output = batch.run(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answers = batch.answers();
    assert_eq!(answers.len(), 40);
    assert!(first.len() >= 3 && first.iter().all(|(id, answer)| answers[id] == *answer), "they were answered again");
    let output = batch.run(&[]);
    assert!(output.status.success() && text(&output.stderr).contains("all 40 requests have an answer"));
}

/// Requests whose answers take a while.
fn long_batch() -> Batch {
    let request = |number| completion(&format!("request {number}"), json!({ "max_tokens": 60 }));
    Batch::new(&(0..40).map(request).collect::<Vec<Value>>())
}

/// Starts a batch and waits for its first answers.
fn started(batch: &Batch, flags: &[&str]) -> Child {
    let mut child = batch.command(flags).stderr(Stdio::piped()).spawn().unwrap();
    while batch.lines() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        sleep(Duration::from_millis(5));
    }
    child
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_batch_without_failed_requests() {
    let batch = long_batch();
    let child = started(&batch, &["--parallel", "8"]);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("of 40 requests have an answer in") && errors.contains("interrupted"), "{errors}");
    assert!(!errors.contains("request failed"), "{errors}");
    let answers = batch.answers();
    assert!(answers.values().all(|answer| answer["response"]["status_code"] == 200));
}

#[test]
fn a_wrong_file_is_refused_before_the_model_is_loaded() {
    let batch = Batch::new(&[completion("a", json!({})), completion("b", json!({ "stream": true }))]);
    let refused = |flags: &[&str]| {
        let output = batch.run(flags);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let error = refused(&[]);
    assert!(error.contains("line 2 of") && error.contains("leave `stream` out"), "{error}");
    assert!(!batch.answers_file().exists());
    fs::write(batch.directory.path().join("requests.jsonl"), completion("a", json!({})).to_string()).unwrap();
    fs::write(batch.answers_file(), "my notes\n").unwrap();
    let error = refused(&[]);
    assert!(error.contains("is no answer to these requests") && error.contains("name another file"), "{error}");
    assert_eq!(fs::read_to_string(batch.answers_file()).unwrap(), "my notes\n");
}
