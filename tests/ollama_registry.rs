//! Models from registries that speak Ollama's protocol, against a local one.

#![allow(clippy::unwrap_used)]

#[path = "support/fake_registry.rs"]
mod fake_registry;
#[path = "support/server_process.rs"]
mod server_process;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuelight::hub::{Hub, HubError, Progress};
use cuelight_engine::load::LoadOptions;
use serde_json::{Value, json};

use fake_registry::{FakeRegistry, client, digest};
use server_process::ServerProcess;

const NAME: &str = "ollama://tiny:1b";
const SYSTEM: &str = "You are a lighthouse.";

/// Records the notices and the bytes of downloads.
#[derive(Clone, Default)]
struct Recorder {
    notices: Arc<Mutex<Vec<String>>>,
    bytes: Arc<Mutex<u64>>,
}

impl Recorder {
    fn all(&self) -> String {
        self.notices.lock().unwrap().join("\n")
    }
}

impl Progress for Recorder {
    fn start(&self, _file: &str, _bytes: u64) {}
    fn advance(&self, bytes: u64) {
        *self.bytes.lock().unwrap() += bytes;
    }
    fn finish(&self) {}
    fn notice(&self, sentence: &str) {
        self.notices.lock().unwrap().push(sentence.to_owned());
    }
}

fn tiny() -> Vec<u8> {
    fixture("families/llama.gguf")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// A registry with one model that has all usual layers.
fn registry() -> FakeRegistry {
    let registry = FakeRegistry::new();
    let params =
        json!({ "temperature": 0.25, "top_k": 7, "stop": ["<|im_end|>", "STOP"], "num_ctx": 96, "num_keep": 4 });
    let (model, params) = (tiny(), params.to_string());
    let layers: [(&str, &[u8]); 5] = [
        ("model", &model),
        ("template", b"{{ .Prompt }}"),
        ("system", SYSTEM.as_bytes()),
        ("license", b"free"),
        ("params", params.as_bytes()),
    ];
    registry.add("tiny:1b", &layers);
    registry
}

/// The message of the error when a model is pulled.
fn refused(hub: &Hub, name: &str) -> (HubError, String) {
    let error = hub.pull(name, &()).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_model_is_pulled_into_ollamas_layout_and_then_found_offline() {
    let registry = registry();
    let recorder = Recorder::default();
    let path = registry.client(&[]).pull(NAME, &recorder).unwrap();
    assert_eq!(path, registry.store().join("blobs").join(digest(&tiny()).replace(':', "-")));
    assert_eq!(std::fs::read(&path).unwrap(), tiny());
    let manifest = registry.store().join("manifests").join(&registry.host).join("library/tiny/1b");
    assert_eq!(std::fs::read(manifest).unwrap(), registry.behaviour.manifests.lock().unwrap()["library/tiny:1b"]);
    assert_eq!(std::fs::read_dir(registry.store().join("blobs")).unwrap().count(), 6);
    assert!(*recorder.bytes.lock().unwrap() > tiny().len() as u64);
    assert!(recorder.all().contains("num_keep"), "{}", recorder.all());
    assert!(!recorder.all().contains("template"), "the GGUF file has one: {}", recorder.all());

    let offline = registry.client(&[("offline", "true")]);
    let full = format!("ollama://{}/library/tiny:1b", registry.host);
    for name in [NAME, "ollama://library/tiny:1b", &full] {
        assert_eq!(offline.locate(name, &()).unwrap(), path, "{name}");
    }
    assert_eq!(client(registry.folder.path(), &[("offline", "true")]).locate(NAME, &()).unwrap(), path);
    assert!(matches!(offline.locate("ollama://tiny:2b", &()), Err(HubError::Offline { .. })));
    registry.client(&[]).pull(NAME, &()).unwrap();
    assert_eq!(registry.downloads(), [0], "what is here is not downloaded again");
}

#[test]
fn a_broken_download_continues_where_it_stopped() {
    let registry = registry();
    registry.behaviour.cut_off.store(2, Ordering::Relaxed);
    let recorder = Recorder::default();
    let path = registry.client(&[]).pull(NAME, &recorder).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), tiny());
    let half = tiny().len() / 2;
    assert_eq!(registry.downloads(), [0, half, half + tiny().len().div_ceil(2) / 2]);
    assert!(recorder.all().contains("broke off"), "{}", recorder.all());
}

#[test]
fn a_later_command_continues_a_download() {
    let registry = registry();
    let blobs = registry.store().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.part", digest(&tiny()).replace(':', "-")));
    std::fs::write(&part, &tiny()[..1000]).unwrap();
    assert_eq!(std::fs::read(registry.client(&[]).pull(NAME, &()).unwrap()).unwrap(), tiny());
    assert_eq!(registry.downloads(), [1000]);
    assert!(!part.exists());
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let registry = registry();
    registry.behaviour.ignores_ranges.store(true, Ordering::Relaxed);
    registry.behaviour.cut_off.store(1, Ordering::Relaxed);
    assert_eq!(std::fs::read(registry.client(&[]).pull(NAME, &()).unwrap()).unwrap(), tiny());
    assert_eq!(registry.downloads(), [0, 0]);
}

#[test]
fn data_that_does_not_match_its_digest_is_refused_and_removed() {
    let registry = registry();
    registry.behaviour.corrupts.store(true, Ordering::Relaxed);
    let (error, text) = refused(&registry.client(&[]), NAME);
    assert!(matches!(error, HubError::Checksum { .. }), "{text}");
    let left = std::fs::read_dir(registry.store().join("blobs")).unwrap().flatten();
    assert_eq!(left.map(|file| file.metadata().unwrap().len()).sum::<u64>(), 0);
    assert!(registry.client(&[]).ollama().models().is_empty());
    registry.behaviour.corrupts.store(false, Ordering::Relaxed);
    registry.behaviour.sends_more.store(true, Ordering::Relaxed);
    let (error, _) = refused(&registry.client(&[]), NAME);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("more than the expected"), "{cause}");
    registry.behaviour.sends_more.store(false, Ordering::Relaxed);
    assert!(registry.client(&[]).pull(NAME, &()).is_ok());
}

#[test]
fn wrong_names_and_manifests_are_refused_with_their_reason() {
    let registry = registry();
    registry.add_manifest("html:1", b"<html>sign in</html>");
    registry.add_manifest("empty:1", b"{}");
    registry.add_manifest(
        "path:1",
        br#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../x","size":3}]}"#,
    );
    let hub = registry.client(&[]);
    for (name, part) in [
        ("ollama://tiny:70b", "has no ollama://tiny:70b, or it is private"),
        ("ollama://tiny", "has no ollama://tiny:latest"),
        ("ollama://private/x:1", "or it is private"),
        ("ollama://html:1", "manifest of ollama://html:1 is damaged"),
        ("ollama://empty:1", "missing field `layers`"),
        ("ollama://path:1", "is no SHA-256 digest"),
        ("ollama://", "write ollama://name:tag"),
        ("ollama://tiny:", "write ollama://name:tag"),
        ("ollama://../../etc/passwd", "write ollama://name:tag"),
        ("ollama://tiny:../x", "write ollama://name:tag"),
    ] {
        let (_, text) = refused(&hub, name);
        assert!(text.contains(part), "{name}: {text}");
    }
    assert!(registry.downloads().is_empty() && !registry.folder.path().join("x").exists());
    let (error, text) = refused(&client(registry.folder.path(), &[]), NAME);
    assert!(matches!(error, HubError::NoRegistry(_)) && text.contains("CUELIGHT_OLLAMA_REGISTRY"), "{text}");
}

#[test]
fn layers_that_do_not_run_are_refused_by_name_and_a_projector_comes_with_its_model() {
    let registry = registry();
    registry.add("mlx:1", &[("tensor", &[1; 2000]), ("tensor", &[2; 2000])]);
    registry.add("tuned:1", &[("model", &tiny()), ("adapter", &[1; 2000])]);
    registry.add("vision:1", &[("model", &tiny()), ("projector", &[3; 2000])]);
    for (name, part) in [("mlx", "single tensors for MLX"), ("tuned", "an adapter in a layer of its own")] {
        let (_, text) = refused(&registry.client(&[]), &format!("ollama://{name}:1"));
        assert!(text.contains(part), "{text}");
        assert!(registry.downloads().is_empty());
    }
    let recorder = Recorder::default();
    registry.client(&[]).pull("ollama://vision:1", &recorder).unwrap();
    assert!(!recorder.all().contains("without"), "{}", recorder.all());
    assert_eq!(registry.downloads().len(), 2);
}

#[test]
fn a_template_in_go_is_not_executed_which_is_said_where_it_matters() {
    let registry = FakeRegistry::new();
    registry.add("plain:1", &[("model", &fixture("tokenizer/byte-level.gguf")), ("template", b"{{ .Prompt }}")]);
    let recorder = Recorder::default();
    registry.client(&[]).pull("ollama://plain:1", &recorder).unwrap();
    assert!(recorder.all().contains("its template in Go's language is not executed"), "{}", recorder.all());
}

#[test]
fn data_of_other_models_is_kept_when_a_model_is_removed() {
    let registry = registry();
    registry.add("copy:1", &[("model", &tiny()), ("system", b"Hello.")]);
    let hub = registry.client(&[]);
    for name in [NAME, "ollama://copy:1"] {
        hub.pull(name, &()).unwrap();
    }
    let models = hub.ollama().models();
    assert_eq!(models.iter().map(|model| model.name.model.as_str()).collect::<Vec<_>>(), ["copy", "tiny"]);
    assert_eq!(hub.ollama().remove(&models[0]).unwrap(), 6, "its system prompt");
    assert!(hub.locate(NAME, &()).unwrap().exists());
    assert_eq!(hub.ollama().remove(&models[1]).unwrap(), models[1].bytes);
    assert_eq!(std::fs::read_dir(registry.store().join("blobs")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(registry.store().join("manifests")).unwrap().count(), 0);
}

#[test]
fn two_programs_pull_the_same_model_at_once() {
    let registry = registry();
    let (one, two) = (registry.client(&[]), registry.client(&[]));
    let other = std::thread::spawn(move || two.pull(NAME, &()).unwrap());
    let path = one.pull(NAME, &()).unwrap();
    assert_eq!(other.join().unwrap(), path);
    assert_eq!(std::fs::read(path).unwrap(), tiny());
}

#[test]
fn what_the_publisher_recommends_is_read() {
    let registry = registry();
    let hub = registry.client(&[]);
    hub.pull(NAME, &()).unwrap();
    let published = hub.published(NAME).unwrap();
    assert_eq!((published.context_tokens, published.recommended.stop.len()), (Some(96), 2));
    assert_eq!(published.recommended.system.as_deref(), Some(SYSTEM));
    assert_eq!(published.recommended.sampling.stated.temperature, Some(0.25));
    assert_eq!(hub.published("demo").unwrap().recommended, LoadOptions::new("x").recommended);
    registry.add("odd:1", &[("model", &tiny()), ("params", b"[1]")]);
    assert!(matches!(hub.pull("ollama://odd:1", &()), Err(HubError::BadManifest { .. })));
}

#[test]
fn the_command_line_pulls_lists_shows_runs_and_removes() {
    let registry = registry();
    let home = registry.folder.path();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", home).env("CUELIGHT_CALIBRATE", "off");
        command.env("CUELIGHT_OLLAMA_REGISTRY", registry.address()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, path, error) = run(&["pull", NAME]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(std::fs::read(path.trim_end()).unwrap(), tiny());
    let list: Value = serde_json::from_str(&run(&["list", "--json"]).1).unwrap();
    assert_eq!((&list[0]["model"], &list[0]["format"]), (&json!(NAME), &json!("gguf")));
    let (code, shown, error) = run(&["show", NAME, "--json", "--offline"]);
    assert_eq!(code, Some(0), "{error}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["sampling"]["temperature"], 0.25);
    assert_eq!((&shown["stop"][1], &shown["system"]), (&json!("STOP"), &json!(SYSTEM)));
    assert_eq!(shown["memory"]["context_tokens"], 96);
    let (_, text, _) = run(&["show", NAME]);
    assert!(text.contains(&format!("Recommended system prompt: \"{SYSTEM}\"")), "{text}");
    let (code, _, error) = run(&["run", NAME, "hello", "--max-tokens", "4"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("for 96 tokens"), "{error}");
    let (code, _, error) = run(&["pull", NAME, "--format", "safetensors"]);
    assert_eq!(code, Some(1), "{error}");
    let (code, _, error) = run(&["rm", NAME, "--yes"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(run(&["list", "--json"]).1.trim(), "[]");
    let (code, _, error) = run(&["rm", NAME, "--yes"]);
    assert!(code == Some(1) && error.contains("is not in the cache"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_over_parameters_and_system_prompt() {
    let registry = registry();
    let (home, address) = (registry.folder.path().to_str().unwrap().to_owned(), registry.address());
    let variables = [("HOME", home.as_str()), ("CUELIGHT_OLLAMA_REGISTRY", address.as_str()), ("XDG_CACHE_HOME", "")];
    let mut server = ServerProcess::start_model_in(Path::new(NAME), &[], &variables).await;
    let http = reqwest::Client::new();
    let post = async |path: &str, body: Value| -> Value {
        http.post(format!("{}{path}", server.url)).json(&body).send().await.unwrap().json().await.unwrap()
    };
    let shown = post("/api/show", json!({ "model": "tiny:1b" })).await;
    assert_eq!(shown["system"], SYSTEM);
    let parameters = shown["parameters"].as_str().unwrap();
    for line in ["num_ctx 96", "temperature 0.25", "top_k 7", "stop \"STOP\""] {
        assert!(parameters.lines().any(|one| one == line), "{parameters}");
    }
    let own = json!({ "role": "system", "content": "I am my own." });
    let user = json!({ "role": "user", "content": "hi" });
    let prompt = post("/apply-template", json!({ "messages": [user] })).await["prompt"].to_string();
    assert!(prompt.contains(SYSTEM), "{prompt}");
    let prompt = post("/apply-template", json!({ "messages": [own, user] })).await["prompt"].to_string();
    assert!(!prompt.contains(SYSTEM) && prompt.contains("I am my own."), "{prompt}");
    server.terminate();
    assert!(server.ended(Duration::from_secs(20)).await.success());
}
