//! Models that clients of a server download from a registry with Ollama's protocol, and then use by name.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "support/fake_registry.rs"]
mod fake_registry;
#[path = "support/server_process.rs"]
mod server_process;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Client;
use serde_json::{Value, json};

use fake_registry::{FakeRegistry, digest};
use server_process::ServerProcess;

const SYSTEM: &str = "You are a lighthouse.";
const TINY: &str = "tiny:1b";

/// A registry, and a server whose clients download models from it.
struct Puller {
    registry: FakeRegistry,
    models: PathBuf,
    server: ServerProcess,
    http: Client,
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families/llama.gguf")
}

fn weights() -> Vec<u8> {
    std::fs::read(fixture()).unwrap()
}

impl Puller {
    async fn start() -> Self {
        let registry = FakeRegistry::new();
        let (model, params) = (weights(), json!({ "temperature": 0.25, "stop": ["STOP"], "num_ctx": 96 }).to_string());
        let layers: [(&str, &[u8]); 3] =
            [("model", &model), ("system", SYSTEM.as_bytes()), ("params", params.as_bytes())];
        registry.add(TINY, &layers);
        registry.add("plain:latest", &[("model", &model)]);
        registry.add("vision:1", &[("tensor", &[1; 2000])]);
        let models = registry.folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        let (home, address) = (registry.folder.path().to_str().unwrap().to_owned(), registry.address());
        let variables =
            [("HOME", home.as_str()), ("CUELIGHT_OLLAMA_REGISTRY", address.as_str()), ("XDG_CACHE_HOME", "")];
        let flags = ["--models-dir", models.to_str().unwrap(), "--allow-pull"];
        let server = ServerProcess::start_model_in(&fixture(), &flags, &variables).await;
        Puller { registry, models, server, http: Client::new() }
    }

    async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        self.http.post(format!("{}{path}", self.server.url)).json(body).send().await.unwrap()
    }

    /// The status and the objects of an answer.
    async fn post(&self, path: &str, body: Value) -> (u16, Vec<Value>) {
        let response = self.send(path, &body).await;
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    async fn pull(&self, name: &str) -> (u16, Vec<Value>) {
        self.post("/api/pull", json!({ "model": name, "stream": false })).await
    }

    /// The message of a pull that is refused with this status.
    async fn refused(&self, name: &str, expected: u16) -> String {
        let (status, objects) = self.pull(name).await;
        assert_eq!(status, expected, "{name}: {objects:?}");
        objects[0]["error"].as_str().unwrap().to_owned()
    }

    async fn names(&self) -> Vec<String> {
        let response = self.http.get(format!("{}/api/tags", self.server.url)).send().await.unwrap();
        let tags: Value = response.json().await.unwrap();
        tags["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn delete(&self, name: &str) -> u16 {
        let request = self.http.delete(format!("{}/api/delete", self.server.url)).json(&json!({ "model": name }));
        request.send().await.unwrap().status().as_u16()
    }

    /// The number of files in the directory of models.
    fn files(&self) -> usize {
        std::fs::read_dir(&self.models).unwrap().count()
    }

    async fn wait_for(&self, is_so: impl Fn(&FakeRegistry) -> bool) {
        while !is_so(&self.registry) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn chat(model: &str) -> Value {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    json!({ "model": model, "messages": messages, "stream": false, "options": { "num_predict": 2 } })
}

/// What ends a line of a file or a layer.
fn is_complete(line: &Value) -> bool {
    line["total"].is_number() && line["total"] == line["completed"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pulled_model_answers_by_its_name_until_it_is_deleted() {
    let server = Puller::start().await;
    let (status, lines) = server.post("/api/pull", json!({ "model": TINY, "insecure": true })).await;
    assert_eq!((status, &lines[0]), (200, &json!({ "status": "pulling manifest" })));
    let complete: Vec<&Value> = lines.iter().filter(|line| is_complete(line)).collect();
    let params = json!({ "temperature": 0.25, "stop": ["STOP"], "num_ctx": 96 }).to_string();
    for data in [weights(), SYSTEM.into(), params.into()] {
        let digest = digest(&data);
        let status = format!("pulling {}", &digest["sha256:".len()..][..12]);
        let line = json!({ "status": status, "digest": digest, "total": data.len(), "completed": data.len() });
        assert!(complete.contains(&&line), "{line} in {lines:?}");
    }
    let statuses: Vec<&str> = lines.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(statuses[statuses.len() - 3..], ["verifying sha256 digest", "writing manifest", "success"]);

    let names = server.names().await;
    assert_eq!(names.iter().filter(|name| name.contains("tiny")).count(), 1, "{names:?}");
    assert!(names.contains(&TINY.to_owned()), "{names:?}");
    for name in [TINY.to_owned(), "ollama://tiny:1b".to_owned(), format!("{}/library/tiny:1b", server.registry.host)] {
        let (status, answer) = server.post("/api/chat", chat(&name)).await;
        assert_eq!((status, &answer[0]["model"]), (200, &json!(name)), "{answer:?}");
        assert_eq!(answer[0]["eval_count"], 2);
    }
    let (_, shown) = server.post("/api/show", json!({ "model": TINY })).await;
    let parameters = shown[0]["parameters"].as_str().unwrap();
    assert!(parameters.contains("num_ctx 96") && parameters.contains("temperature 0.25"), "{parameters}");
    assert_eq!(shown[0]["system"], SYSTEM);

    assert_eq!(server.pull(TINY).await, (200, vec![json!({ "status": "success" })]));
    assert_eq!(server.registry.downloads().len(), 1, "what is here is not downloaded again");
    assert_eq!(server.pull("plain").await.0, 200);
    assert_eq!(server.post("/api/chat", chat("plain")).await.0, 200);
    assert!(server.names().await.contains(&"plain:latest".to_owned()));

    assert_eq!((server.delete(TINY).await, server.files()), (200, 1));
    assert_eq!(server.post("/api/chat", chat(TINY)).await.0, 404);
    assert_eq!(
        server.post("/api/chat", chat("plain:latest")).await.0,
        200,
        "its weights are those of the deleted model"
    );
    assert_eq!((server.delete("plain").await, server.files()), (200, 0));
    let data = server.registry.folder.path().join(".cache/cuelight/ollama/blobs");
    assert_eq!(std::fs::read_dir(data).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_ends_with_its_clients_and_is_continued() {
    let server = Puller::start().await;
    let behaviour = &server.registry.behaviour;
    behaviour.is_held.send_replace(true);
    let body = json!({ "model": TINY });
    let mut first = server.send("/api/pull", &body).await.bytes_stream();
    let second = server.send("/api/pull", &body).await;
    server.wait_for(|registry| registry.behaviour.waiting.load(Ordering::Relaxed) == 1).await;
    let mut seen = String::new();
    while !seen.contains("\"completed\":100}") {
        seen.push_str(std::str::from_utf8(&first.next().await.unwrap().unwrap()).unwrap());
    }
    drop(first);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(behaviour.waiting.load(Ordering::Relaxed), 1, "the second client waits for it");
    drop(second);
    server.wait_for(|registry| registry.behaviour.waiting.load(Ordering::Relaxed) == 0).await;
    assert_eq!(server.files(), 0);

    let unstreamed = json!({ "model": TINY, "stream": false });
    let request = server.http.post(format!("{}/api/pull", server.server.url)).json(&unstreamed);
    assert!(request.timeout(Duration::from_millis(400)).send().await.is_err());
    server.wait_for(|registry| registry.behaviour.waiting.load(Ordering::Relaxed) == 0).await;
    behaviour.is_held.send_replace(false);
    assert_eq!(server.pull(TINY).await.0, 200);
    let downloads = server.registry.downloads();
    assert_eq!((downloads[0], *downloads.last().unwrap() >= 100), (0, true), "{downloads:?}");
    assert_eq!(server.post("/api/chat", chat(TINY)).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_pulled_has_its_reason() {
    let server = Puller::start().await;
    for (name, status, reason) in [
        ("tiny:70b", 404, "the registry has no model tiny:70b"),
        ("vision:1", 500, "single tensors for MLX"),
        ("ollama://127.0.0.1:1/library/tiny:1b", 400, "only from its own registry"),
        ("ollama://../../etc/passwd", 400, "is not a model that can be downloaded"),
        ("a b", 400, "is not a model that can be downloaded"),
    ] {
        let message = server.refused(name, status).await;
        assert!(message.contains(reason) && !message.contains("http"), "{name}: {message}");
    }
    let (status, lines) = server.post("/api/pull", json!({ "name": "tiny:70b" })).await;
    assert_eq!((status, &lines[0]), (200, &json!({ "status": "pulling manifest" })));
    assert!(lines[1]["error"].as_str().unwrap().contains("tiny:70b"), "{lines:?}");
    server.registry.behaviour.corrupts.store(true, Ordering::Relaxed);
    assert!(server.refused(TINY, 500).await.contains("damaged"));
    assert!(server.registry.downloads().iter().all(|first| *first == 0));
    assert_eq!(server.files(), 0);
    // The operator's models keep their names, and are here.
    let (id, count) = (server.names().await[0].clone(), server.registry.downloads().len());
    assert_eq!(server.pull(&id).await, (200, vec![json!({ "status": "success" })]));
    assert_eq!((server.registry.downloads().len(), server.files()), (count, 0));
    server.registry.behaviour.corrupts.store(false, Ordering::Relaxed);
    std::fs::write(server.models.join("tiny:1b.gguf"), b"mine").unwrap();
    assert_eq!(server.pull("ollama://tiny:1b").await.0, 409);
    assert_eq!(server.delete(TINY).await, 403);
    assert_eq!(std::fs::read(server.models.join("tiny:1b.gguf")).unwrap(), b"mine");
}
