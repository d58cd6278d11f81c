//! A model's file changes while a real server serves it: the process survives, no wrong text is sent, and a reload helps.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuelight_engine::load::{self, LoadCancel, LoadOptions};
use serde_json::{Value, json};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::ServerProcess;

/// Tokens of a stream: enough that it is running when the file changes.
const TOKENS: usize = 3_000;

/// What a stream has sent.
#[derive(Debug, Default)]
struct Streamed {
    text: String,
    error: Option<String>,
    is_whole: bool,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

/// A server of a copy of a tiny model, whose weights are read from the mapped file.
struct Served {
    folder: tempfile::TempDir,
    server: ServerProcess,
}

impl Served {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::copy(fixture("llama.gguf"), &path).unwrap();
        // The time of a change is known to a few milliseconds only.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let server = ServerProcess::start_model(&path, &["--ctx-size", "4096", "--max-seqs", "4"]).await;
        Served { folder, server }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("m.gguf")
    }

    fn file(&self) -> File {
        File::options().write(true).open(self.path()).unwrap()
    }

    /// Streams a completion. `meanwhile` runs once when some text has arrived.
    async fn stream(&self, seed: u32, tokens: usize, meanwhile: impl FnOnce(&Self)) -> Streamed {
        let body = json!({
            "model": "m", "prompt": [1, 20 + seed, 30], "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true,
        });
        let request = reqwest::Client::new().post(format!("{}/v1/completions", self.server.url)).json(&body);
        let mut response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let (mut streamed, mut pending, mut meanwhile) = (Streamed::default(), Vec::new(), Some(meanwhile));
        while let Some(bytes) = response.chunk().await.unwrap_or(None) {
            pending.extend_from_slice(&bytes);
            while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                streamed.add(&line);
            }
            if streamed.text.len() > 200
                && let Some(meanwhile) = meanwhile.take()
            {
                meanwhile(self);
            }
        }
        streamed
    }

    /// Requests a short answer: its status and body.
    async fn ask(&self) -> (u16, Value) {
        let body =
            json!({ "model": "m", "prompt": [1, 20, 30], "max_tokens": 40, "temperature": 0, "ignore_eos": true });
        self.post("/v1/completions", &body).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = reqwest::Client::new().post(format!("{}{path}", self.server.url)).json(body);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn answer(&self) -> String {
        let (status, body) = self.ask().await;
        assert_eq!(status, 200, "{body}");
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Waits until `/ready` answers 503 with a reason that names the file.
    async fn assert_reports_the_change(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let (status, body) = self.server.get("/ready").await;
            if status == 503 && body.contains("m.gguf changed while it was loaded") {
                return;
            }
            assert!(Instant::now() < end, "{status} {body}\n{}", self.server.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// After the file is what it was, a load by request makes the model usable again.
    async fn assert_reload_helps(&self, expected: &str) {
        // Longer than the pause after which a call tries a failed load again: a changed file is not loaded by a call.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (status, body) = self.ask().await;
        assert_eq!((status, &body["error"]["code"]), (503, &json!("model_file_changed")), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains("reload the model"), "{body}");

        fs::copy(fixture("llama.gguf"), self.path()).unwrap();
        let (status, body) = self.post("/models/load", &json!({ "model": "m" })).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(self.answer().await, expected);
        assert_eq!(self.server.get("/ready").await.0, 200);
    }
}

impl Streamed {
    fn add(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data: ") else { return };
        if data.trim_ascii() == b"[DONE]" {
            self.is_whole = true;
            return;
        }
        let event: Value = serde_json::from_slice(data).unwrap();
        if let Some(error) = event["error"]["message"].as_str() {
            self.error = Some(error.to_owned());
        }
        self.text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
    }
}

/// Changes the file while streams run. Their text must be the beginning of the text without a change.
async fn streams_end_with_an_error(change: impl Fn(&Served)) {
    let served = Served::start().await;
    let short = served.answer().await;
    let expected = [served.stream(1, TOKENS, |_| ()).await, served.stream(2, TOKENS, |_| ()).await];
    assert!(expected.iter().all(|streamed| streamed.error.is_none()), "{:?}", expected[0].error);

    let (first, second) = tokio::join!(served.stream(1, TOKENS, &change), served.stream(2, TOKENS, |_| ()));
    for (streamed, expected) in [first, second].iter().zip(&expected) {
        let error =
            streamed.error.as_deref().unwrap_or_else(|| panic!("it ended without an error: {}", served.server.log()));
        assert!(error.contains("m.gguf changed while it was loaded"), "{error}");
        assert!(streamed.text.len() < expected.text.len() && expected.text.starts_with(&streamed.text), "wrong text");
    }
    served.assert_reports_the_change().await;
    served.assert_reload_helps(&short).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_file_ends_its_streams_and_not_the_process() {
    streams_end_with_an_error(|served| served.file().set_len(4096).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_to_gives_no_wrong_text() {
    let rewrite = |served: &Served| {
        let bytes = fs::read(served.path()).unwrap();
        // Other weights in the same format: some bits of the mantissas in the second half of the file.
        let start = bytes.len() / 8 * 4;
        let other = |(i, byte): (usize, &u8)| if i % 4 == 2 { byte ^ 0x55 } else { *byte };
        let other: Vec<u8> = bytes[start..].iter().enumerate().map(other).collect();
        served.file().write_all_at(&other, start as u64).unwrap();
    };
    streams_end_with_an_error(rewrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_replaces_another_is_served_after_a_reload() {
    let served = Served::start().await;
    let (short, expected) = (served.answer().await, served.stream(1, TOKENS, |_| ()).await);
    let replace = |served: &Served| {
        let newer = served.folder.path().join("newer");
        fs::copy(fixture("qwen2.gguf"), &newer).unwrap();
        fs::rename(&newer, served.path()).unwrap();
    };
    let streamed = served.stream(1, TOKENS, replace).await;
    assert!(streamed.error.is_none() && streamed.is_whole && streamed.text == expected.text, "{:?}", streamed.error);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(served.answer().await, short, "still the old file");
    assert!(served.server.log().contains("a newer model file is at this path"), "{}", served.server.log());

    for action in ["unload", "load"] {
        let (status, body) = served.post(&format!("/models/{action}"), &json!({ "model": "m" })).await;
        assert_eq!(status, 200, "{body}");
    }
    assert_ne!(served.answer().await, short, "the new file");
}

#[test]
fn a_model_with_learnt_positions_has_no_longer_context() {
    let options = |tokens| LoadOptions { context_tokens: Some(tokens), ..LoadOptions::new(fixture("gpt2.gguf")) };
    assert_eq!(load::plan(&options(4096)).unwrap().limits().context_tokens, 128);
    assert_eq!(load::plan(&options(64)).unwrap().limits().context_tokens, 64);
}

#[test]
fn a_cancelled_load_ends_after_the_next_tensor() {
    let cancel = LoadCancel::default();
    let plan = || load::plan(&LoadOptions::new(fixture("llama.gguf"))).unwrap();
    let mut tensors = 0;
    let loaded = plan().load_cancellable(&cancel, &mut |progress| {
        tensors += usize::from(progress.done_bytes > 0);
        if tensors == 3 {
            cancel.cancel();
        }
    });
    assert!(loaded.err().unwrap().is_cancelled());
    assert_eq!(tensors, 3);
    assert!(plan().load_cancellable(&cancel, &mut |_| ()).err().unwrap().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_noticed_while_no_request_runs() {
    let served = Served::start().await;
    assert_eq!(served.server.get("/ready").await.0, 200);
    served.file().set_len(100).unwrap();
    served.assert_reports_the_change().await;
}
