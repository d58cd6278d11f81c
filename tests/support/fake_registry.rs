//! A local registry that speaks Ollama's protocol.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use cuelight::config::environment::Environment;
use cuelight::config::{Given, Origin, Raw, resolve};
use cuelight::hub::Hub;
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// The models and the behaviour of the registry.
#[derive(Default)]
pub struct Behaviour {
    /// Manifests by `namespace/model:tag`.
    pub manifests: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Data by digest.
    pub blobs: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Whether to send data that does not match its digest.
    pub corrupts: AtomicBool,
    /// Whether to send all data, whatever the range.
    pub ignores_ranges: AtomicBool,
    /// Whether to send ten bytes more than there are.
    pub sends_more: AtomicBool,
    /// Number of responses to cut off in the middle.
    pub cut_off: AtomicUsize,
    /// Whether data waits until this is false.
    pub is_held: watch::Sender<bool>,
    /// The number of responses that wait, or have waited and were not dropped.
    pub waiting: Arc<AtomicUsize>,
    /// The first byte of each download of at least a thousand bytes.
    pub downloads: Mutex<Vec<usize>>,
}

pub struct FakeRegistry {
    pub behaviour: Arc<Behaviour>,
    pub host: String,
    pub folder: tempfile::TempDir,
    server: Option<tokio::runtime::Runtime>,
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.server.take().unwrap().shutdown_background();
    }
}

pub fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

impl FakeRegistry {
    pub fn new() -> Self {
        let behaviour = Arc::new(Behaviour::default());
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let app = Router::new()
            .route("/v2/{namespace}/{model}/manifests/{tag}", get(manifest))
            .route("/v2/{namespace}/{model}/blobs/{digest}", get(blob))
            .route("/storage/{digest}", get(storage))
            .with_state(behaviour.clone());
        server.spawn(async move { axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await });
        FakeRegistry { behaviour, host, folder: tempfile::tempdir().unwrap(), server: Some(server) }
    }

    /// Adds a model with these layers, each of a kind, to the namespace `library`.
    pub fn add(&self, name: &str, layers: &[(&str, &[u8])]) {
        let layer = |(kind, bytes): &(&str, &[u8])| {
            self.behaviour.blobs.lock().unwrap().insert(digest(bytes), bytes.to_vec());
            let kind = format!("application/vnd.ollama.image.{kind}");
            json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() })
        };
        let layers: Vec<Value> = layers.iter().map(layer).collect();
        let config = br#"{"model_format":"gguf","model_family":"llama"}"#;
        self.behaviour.blobs.lock().unwrap().insert(digest(config), config.to_vec());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest(config),
                "size": config.len()
            },
            "layers": layers,
        });
        self.add_manifest(name, manifest.to_string().as_bytes());
    }

    pub fn add_manifest(&self, name: &str, bytes: &[u8]) {
        self.behaviour.manifests.lock().unwrap().insert(format!("library/{name}"), bytes.to_vec());
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.host)
    }

    /// A program that uses the registry.
    pub fn client(&self, more: &[(&'static str, &str)]) -> Hub {
        let address = self.address();
        client(self.folder.path(), &[&[("ollama_registry", address.as_str())], more].concat())
    }

    /// The models on the disk.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("cuelight/ollama")
    }

    pub fn downloads(&self) -> Vec<usize> {
        self.behaviour.downloads.lock().unwrap().clone()
    }
}

pub fn client(directory: &Path, settings: &[(&'static str, &str)]) -> Hub {
    let (home, caches) = (directory.join("hf"), directory.join("cuelight"));
    let places = [("hf_home", home.to_str().unwrap()), ("cache_dir", caches.to_str().unwrap())];
    let given: Given = places
        .iter()
        .chain(settings)
        .map(|(name, value)| (*name, (Raw::Text((*value).to_owned()), Origin::Default)))
        .collect();
    Hub::new(&resolve(None, &Environment::default(), given).unwrap().config)
}

async fn manifest(
    State(registry): State<Arc<Behaviour>>,
    UrlPath((namespace, model, tag)): UrlPath<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    assert!(headers["accept"].to_str().unwrap().contains("manifest.v2+json"));
    if namespace == "private" {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let manifests = registry.manifests.lock().unwrap();
    let manifest = manifests.get(&format!("{namespace}/{model}:{tag}")).cloned();
    manifest.map_or_else(|| StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response)
}

/// Data is on another server, to which the registry redirects.
async fn blob(UrlPath((_, _, digest)): UrlPath<(String, String, String)>) -> Redirect {
    Redirect::temporary(&format!("/storage/{digest}"))
}

async fn storage(
    State(registry): State<Arc<Behaviour>>,
    UrlPath(digest): UrlPath<String>,
    headers: HeaderMap,
) -> Response {
    let Some(mut data) = registry.blobs.lock().unwrap().get(&digest).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let is_large = data.len() >= 1000;
    if registry.corrupts.load(Ordering::Relaxed) {
        data.iter_mut().for_each(|byte| *byte ^= 1);
    }
    if registry.sends_more.load(Ordering::Relaxed) {
        data.extend([0; 10]);
    }
    let range = headers.get(header::RANGE).map(|range| range.to_str().unwrap().strip_prefix("bytes=").unwrap());
    let first = range.map(|range| range.strip_suffix('-').unwrap().parse::<usize>().unwrap());
    let first = first.filter(|_| !registry.ignores_ranges.load(Ordering::Relaxed));
    let status = if first.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut part = data.split_off(first.unwrap_or(0));
    if is_large {
        registry.downloads.lock().unwrap().push(first.unwrap_or(0));
        let cut = registry.cut_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if cut.is_ok() {
            let length = [(header::CONTENT_LENGTH, part.len().to_string())];
            part.truncate(part.len() / 2);
            // What was sent arrives before the connection breaks.
            let pause = std::time::Duration::from_millis(100);
            let cut = async move {
                tokio::time::sleep(pause).await;
                Err(std::io::Error::other("cut off"))
            };
            let broken = stream::once(async { Ok(part) }).chain(stream::once(cut));
            return (status, length, Body::from_stream(broken)).into_response();
        }
    }
    if is_large && *registry.is_held.borrow() {
        return (status, Body::from_stream(held(registry.clone(), part))).into_response();
    }
    (status, part).into_response()
}

/// Counts a response for as long as it is wanted.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The first hundred bytes at once, and the others when they are no longer held.
fn held(registry: Arc<Behaviour>, mut data: Vec<u8>) -> impl stream::Stream<Item = std::io::Result<Vec<u8>>> + Send {
    registry.waiting.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(registry.waiting.clone());
    let rest = data.split_off(100);
    let rest = async move {
        let _counted = counted;
        registry.is_held.subscribe().wait_for(|is_held| !is_held).await.unwrap();
        Ok(rest)
    };
    stream::once(async { Ok(data) }).chain(stream::once(rest))
}
