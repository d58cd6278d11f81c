//! Models that clients download into the models directory and delete, over Ollama's protocol and a local hub.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "support/fake_hub.rs"]
mod fake_hub;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use cuelight::api::{ServerOptions, models_router};
use cuelight::hub::HubStore;
use cuelight::models::{Machine, Models, ModelsDirectory, ModelsOptions, NamedModel};
use cuelight::pipeline::simulation::SimulatedModel;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use common::{model, post};
use fake_hub::{DIRECTORY, FakeHub, directory, noise, two_quants};

const PULL: &str = "/api/pull";
const GENERATE: &str = "/api/generate";

/// A server with a models directory into which its clients download models from a local hub.
struct Puller {
    hub: FakeHub,
    folder: tempfile::TempDir,
    router: Router,
}

fn tireless() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, step_time: Duration::from_millis(2), ..model() }
}

impl Puller {
    async fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let (hub, folder) = (FakeHub::new(files), tempfile::tempdir().unwrap());
        let store = HubStore::new(hub.client(&[]), folder.path().to_owned());
        let store = store.keeping(["Org/Model-GGUF:Q6_K".to_owned()]);
        let directory = ModelsDirectory::open(folder.path(), |_| Arc::new(tireless())).unwrap();
        let directory = directory.with_store(Arc::new(store));
        let named = NamedModel {
            id: "named".to_owned(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            factory: Arc::new(tireless()),
            planned: None,
        };
        let machine = || Machine { available_bytes: None, occupied_bytes: 0 };
        let options = ModelsOptions { machine, ..ModelsOptions::default() };
        let models = Models::start(options, vec![named], Some(directory)).await.unwrap();
        let router = models_router(models, ServerOptions::default()).unwrap();
        Puller { hub, folder, router }
    }

    async fn begin(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// The status and the objects of a response.
    async fn call(&self, request: Request<Body>) -> (u16, Vec<Value>) {
        objects(self.begin(request).await).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Vec<Value>) {
        self.call(post(path, &body)).await
    }

    async fn pull(&self, name: &str) -> (u16, Vec<Value>) {
        self.post(PULL, json!({ "model": name, "stream": false })).await
    }

    async fn delete(&self, name: &str) -> (u16, Vec<Value>) {
        let request = Request::delete("/api/delete").header("content-type", "application/json");
        self.call(request.body(Body::from(json!({ "name": name }).to_string())).unwrap()).await
    }

    async fn names(&self) -> Vec<String> {
        let (_, tags) = self.call(Request::get("/api/tags").body(Body::empty()).unwrap()).await;
        let models = tags[0]["models"].as_array().unwrap();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The number of files in the models directory.
    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn downloads(&self) -> usize {
        self.hub.behaviour.ranges.lock().unwrap().len()
    }
}

async fn objects(response: Response<Body>) -> (u16, Vec<Value>) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let lines = std::str::from_utf8(&body).unwrap().lines();
    (status, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The message of an error with this status.
fn error((status, objects): (u16, Vec<Value>), expected: u16) -> String {
    assert_eq!(status, expected, "{objects:?}");
    objects[0]["error"].as_str().unwrap().to_owned()
}

fn generate(model: &str, more: u32) -> Value {
    json!({ "model": model, "prompt": "hi", "stream": false, "options": { "num_predict": more } })
}

#[tokio::test]
async fn a_pulled_model_answers_by_its_reference_until_it_is_deleted() {
    let server = Puller::start(&two_quants()).await;
    let (status, lines) = server.post(PULL, json!({ "model": "hub.example/org/model-gguf:q8_0" })).await;
    assert_eq!((status, &lines[0]), (200, &json!({ "status": "pulling manifest" })));
    let file = &lines[lines.len() - 2];
    assert_eq!((&file["status"], &file["total"]), (&json!("pulling m.Q8_0.gguf"), &json!(2000)));
    assert_eq!(file["completed"], file["total"]);
    assert_eq!(file["digest"].as_str().unwrap().len(), "sha256:".len() + 64);
    assert_eq!(lines.last(), Some(&json!({ "status": "success" })));
    assert_eq!(std::fs::read(server.file("m.Q8_0.gguf")).unwrap(), noise(2000));

    assert_eq!(server.names().await, ["named", "m.Q8_0", "Org/Model-GGUF:Q8_0", "Org/Model-GGUF"]);
    for name in ["hub.example/org/model-gguf:q8_0", "Org/Model-GGUF:Q8_0", "m.Q8_0", "org/model-gguf:latest"] {
        let (status, answer) = server.post(GENERATE, generate(name, 2)).await;
        assert_eq!(status, 200, "{name}: {answer:?}");
    }
    assert_eq!(server.pull("Org/Model-GGUF:Q8_0").await, (200, vec![json!({ "status": "success" })]));

    assert_eq!(server.delete("org/model-gguf:Q8_0").await, (200, Vec::new()));
    assert_eq!((server.files(), server.names().await), (0, vec!["named".to_owned()]));
    assert!(!server.hub.blobs().exists());
    assert!(error(server.delete("Org/Model-GGUF:Q8_0").await, 404).contains("not found"));
}

#[tokio::test]
async fn all_shards_are_pulled_and_deleted() {
    let (one, two) = ("Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf");
    let server = Puller::start(&[(one, noise(100)), (two, noise(200))]).await;
    assert_eq!(server.pull("Org/Model-GGUF").await.0, 200);
    assert_eq!(std::fs::read(server.file("m-Q8_0-00002-of-00002.gguf")).unwrap(), noise(200));
    assert_eq!(server.names().await[1..3], ["m-Q8_0", "Org/Model-GGUF:Q8_0"]);
    assert_eq!(server.delete("m-Q8_0").await.0, 200);
    assert_eq!(server.files(), 0);
}

#[tokio::test]
async fn a_hugging_face_directory_is_pulled_as_one_link_and_deleted() {
    let server = Puller::start(&directory()).await;
    let (status, lines) = server.post(PULL, json!({ "model": "org/model-gguf" })).await;
    assert_eq!((status, lines.last()), (200, Some(&json!({ "status": "success" }))));
    assert_eq!(std::fs::read_dir(server.file("Model-GGUF")).unwrap().count(), DIRECTORY.len());
    assert_eq!(server.names().await, ["named", "Model-GGUF", "Org/Model-GGUF:safetensors", "Org/Model-GGUF"]);
    for name in ["Model-GGUF", "org/model-gguf:safetensors", "hub.example/Org/Model-GGUF:latest"] {
        assert_eq!(server.post(GENERATE, generate(name, 2)).await.0, 200, "{name}");
    }
    assert_eq!(server.pull("Org/Model-GGUF").await, (200, vec![json!({ "status": "success" })]));
    assert_eq!(server.delete("Org/Model-GGUF:safetensors").await, (200, Vec::new()));
    assert_eq!((server.files(), server.names().await), (0, vec!["named".to_owned()]));
    assert!(!server.hub.blobs().exists());

    std::fs::create_dir(server.file("Model-GGUF")).unwrap();
    assert!(error(server.pull("Org/Model-GGUF").await, 409).contains("Model-GGUF"));
}

#[tokio::test]
async fn one_download_serves_all_who_ask_for_it_and_ends_with_the_last_of_them() {
    let server = Puller::start(&two_quants()).await;
    server.hub.behaviour.is_held.send_replace(true);
    let body = json!({ "model": "Org/Model-GGUF:Q8_0" });
    let (first, second) = (server.begin(post(PULL, &body)).await, server.begin(post(PULL, &body)).await);
    assert!(error(server.delete("m.Q8_0").await, 404).contains("not found"));
    drop(first);
    server.hub.behaviour.is_held.send_replace(false);
    assert_eq!(objects(second).await.1.last(), Some(&json!({ "status": "success" })));
    assert_eq!(server.downloads(), 1);

    server.hub.behaviour.is_held.send_replace(true);
    let waiting = server.begin(post(PULL, &json!({ "model": "Org/Model-GGUF:Q4_K_M" }))).await;
    assert!(error(server.delete("m.Q8_0").await, 409).contains("download"));
    drop(waiting);
    while server.delete("m.Q8_0").await.0 == 409 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.hub.behaviour.is_held.send_replace(false);
    assert_eq!((server.downloads(), server.files()), (1, 0));
    assert_eq!(server.pull("Org/Model-GGUF:Q4_K_M").await.0, 200);
}

#[tokio::test]
async fn a_model_that_cannot_be_pulled_has_its_reason() {
    let server = Puller::start(&two_quants()).await;
    for (name, status, reason) in [
        ("Org/Other", 404, "no repository"),
        ("Org/Model-GGUF:Q2_K", 404, "it has: Q4_K_M, Q8_0"),
        ("/etc/passwd", 400, "org/repo"),
        ("../secret/file.gguf", 400, "org/repo"),
        ("llama", 400, "org/repo"),
        ("demo", 400, "org/repo"),
    ] {
        let message = error(server.pull(name).await, status);
        assert!(message.contains(reason), "{name}: {message}");
    }
    let (status, lines) = server.post(PULL, json!({ "model": "Org/Other" })).await;
    assert_eq!(status, 200);
    assert!(lines.last().unwrap()["error"].as_str().unwrap().contains("no repository"), "{lines:?}");
    assert_eq!(error(server.post(PULL, json!({})).await, 400), "`model` is required: the name of a model");

    server.hub.behaviour.corrupt.store(true, Ordering::Relaxed);
    assert!(error(server.pull("Org/Model-GGUF:Q8_0").await, 500).contains("damaged"));
    assert_eq!(server.files(), 0);
}

#[tokio::test]
async fn a_file_of_the_operator_is_neither_replaced_nor_deleted() {
    let server = Puller::start(&two_quants()).await;
    std::fs::write(server.file("m.Q8_0.gguf"), b"mine").unwrap();
    assert!(error(server.pull("Org/Model-GGUF:Q8_0").await, 409).contains("m.Q8_0.gguf"));
    assert!(error(server.delete("m.Q8_0").await, 403).contains("m.Q8_0"));
    assert_eq!(std::fs::read(server.file("m.Q8_0.gguf")).unwrap(), b"mine");
    assert!(error(server.delete("named").await, 403).contains("named"));
    for name in ["", "default", "default:latest"] {
        assert!(error(server.delete(name).await, 404).contains("not found"), "{name}");
    }
    server.hub.behaviour.files.lock().unwrap().insert("m.Q6_K.gguf".to_owned(), noise(10));
    assert_eq!(server.pull("Org/Model-GGUF:Q6_K").await.0, 200);
    assert!(error(server.delete("m.Q6_K").await, 403).contains("named"));
    assert!(server.file("m.Q6_K.gguf").exists());
    // What is here needs no download.
    assert_eq!(server.pull("named").await.0, 200);
}

#[tokio::test]
async fn a_model_in_use_is_not_deleted() {
    let server = Puller::start(&two_quants()).await;
    assert_eq!(server.pull("Org/Model-GGUF:Q8_0").await.0, 200);
    let mut body = generate("m.Q8_0", 10_000);
    body["stream"] = json!(true);
    let held = server.begin(post(GENERATE, &body)).await;
    assert_eq!(held.status(), 200);
    assert!(error(server.delete("m.Q8_0").await, 409).contains("use"));
    assert!(server.file("m.Q8_0.gguf").exists());
    drop(held);
    while server.delete("m.Q8_0").await.0 == 409 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.files(), 0);
}
