//! A local server with the protocol of the hub.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
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
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub const REPO: &str = "Org/Model-GGUF";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files and the behaviour of the simulated hub.
#[derive(Default)]
pub struct Behaviour {
    pub files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Its current commit, if that is not [`COMMIT`].
    pub commit: Mutex<Option<String>>,
    /// The names that it gives to all data, instead of their checksums.
    pub etag: Mutex<Option<String>>,
    /// The token that is required, if any.
    pub token: Mutex<Option<String>>,
    /// Whether to send data that does not match the checksum.
    pub corrupt: AtomicBool,
    /// Number of responses to cut off in the middle.
    pub cut_off: AtomicUsize,
    /// Starts of the requested ranges, except those of one byte.
    pub ranges: Mutex<Vec<usize>>,
    /// Whether data waits until this is false.
    pub is_held: watch::Sender<bool>,
}

impl Behaviour {
    fn commit(&self) -> String {
        self.commit.lock().unwrap().clone().unwrap_or_else(|| COMMIT.to_owned())
    }

    /// The headers about a file.
    fn facts(&self, bytes: &[u8]) -> [(&'static str, String); 2] {
        let checksum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let etag = self.etag.lock().unwrap().clone().unwrap_or(checksum);
        [("x-repo-commit", self.commit()), ("x-linked-etag", format!("\"{etag}\""))]
    }
}

pub struct FakeHub {
    pub behaviour: Arc<Behaviour>,
    address: SocketAddr,
    cache: tempfile::TempDir,
    server: Option<tokio::runtime::Runtime>,
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        // Waiting for its tasks is not possible in an async test.
        self.server.take().unwrap().shutdown_background();
    }
}

impl FakeHub {
    pub fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let behaviour = Arc::new(Behaviour { files: Mutex::new(files), ..Behaviour::default() });
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/api/models/{org}/{repo}/revision/main", get(info))
            .route("/{org}/{repo}/resolve/main/{*file}", get(file))
            .route("/storage/{*file}", get(storage))
            .with_state(behaviour.clone());
        server.spawn(async move { axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await });
        FakeHub { behaviour, address, cache: tempfile::tempdir().unwrap(), server: Some(server) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn client(&self, more: &[(&'static str, &str)]) -> Hub {
        let endpoint = self.endpoint();
        client(self.cache.path(), &[&[("hf_endpoint", endpoint.as_str())], more].concat())
    }

    pub fn blobs(&self) -> PathBuf {
        self.cache.path().join("hf/hub/models--Org--Model-GGUF/blobs")
    }
}

pub fn client(directory: &Path, settings: &[(&'static str, &str)]) -> Hub {
    let home = directory.join("hf");
    let caches = directory.join("cuelight");
    let places = [("hf_home", home.to_str().unwrap()), ("cache_dir", caches.to_str().unwrap())];
    let given: Given = places
        .iter()
        .chain(settings)
        .map(|(name, value)| (*name, (Raw::Text((*value).to_owned()), Origin::Default)))
        .collect();
    Hub::new(&resolve(None, &Environment::default(), given).unwrap().config)
}

fn allowed(hub: &Behaviour, headers: &HeaderMap) -> bool {
    let token = hub.token.lock().unwrap();
    token
        .as_ref()
        .is_none_or(|token| headers.get("authorization").is_some_and(|given| given == &format!("Bearer {token}")))
}

async fn info(
    State(hub): State<Arc<Behaviour>>,
    UrlPath((org, repo)): UrlPath<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if !format!("{org}/{repo}").eq_ignore_ascii_case(REPO) || !allowed(&hub, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let siblings: Vec<_> =
        hub.files.lock().unwrap().keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
    axum::Json(serde_json::json!({ "id": REPO, "sha": hub.commit(), "siblings": siblings })).into_response()
}

/// Large files are on another server. The hub returns their checksum and size, and redirects.
async fn file(
    State(hub): State<Arc<Behaviour>>,
    UrlPath((_, _, name)): UrlPath<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    if !allowed(&hub, &headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let files = hub.files.lock().unwrap();
    let Some(bytes) = files.get(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let size = [("x-linked-size", bytes.len().to_string())];
    (hub.facts(bytes), size, Redirect::temporary(&format!("/storage/{name}"))).into_response()
}

async fn storage(State(hub): State<Arc<Behaviour>>, UrlPath(name): UrlPath<String>, headers: HeaderMap) -> Response {
    hub.is_held.subscribe().wait_for(|is_held| !is_held).await.unwrap();
    let files = hub.files.lock().unwrap();
    let bytes = &files[&name];
    let range = headers[header::RANGE].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let (start, end) = (start.parse::<usize>().unwrap(), end.parse().unwrap_or(usize::MAX).min(bytes.len() - 1));
    let mut part = bytes[start..=end].to_vec();
    if hub.corrupt.load(Ordering::Relaxed) {
        part.iter_mut().for_each(|byte| *byte ^= 1);
    }
    // The relative redirect is followed at once, so the headers are needed here, too.
    let facts = hub.facts(bytes);
    let head = [(header::CONTENT_RANGE.as_str(), format!("bytes {start}-{end}/{}", bytes.len()))];
    if end > start {
        hub.ranges.lock().unwrap().push(start);
        let cut = hub.cut_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if cut.is_ok() {
            part.truncate(part.len() / 2);
            let length = [(header::CONTENT_LENGTH.as_str(), (end - start + 1).to_string())];
            let broken = futures_util::stream::iter([Ok(part), Err(std::io::Error::other("cut off"))]);
            return (StatusCode::PARTIAL_CONTENT, facts, head, length, Body::from_stream(broken)).into_response();
        }
    }
    (StatusCode::PARTIAL_CONTENT, facts, head, part).into_response()
}

/// Pseudo-random bytes, the same on each call.
pub fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The files of a tiny Hugging Face directory with three shards, and others that its repository could have.
pub fn directory() -> Vec<(&'static str, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/llama-shards");
    let wanted = DIRECTORY.iter().map(|name| (*name, std::fs::read(folder.join(name)).unwrap()));
    let others = ["README.md", "consolidated.safetensors", "onnx/model.onnx", "original/model.safetensors"];
    let others = others.into_iter().chain(["pytorch_model.bin", "tokenizer.model"]).map(|name| (name, noise(50)));
    wanted.chain(others).collect()
}

/// The names of the files that such a directory needs, sorted.
pub const DIRECTORY: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

pub fn two_quants() -> Vec<(&'static str, Vec<u8>)> {
    vec![("README.md", b"hello".to_vec()), ("m.Q4_K_M.gguf", noise(1000)), ("m.Q8_0.gguf", noise(2000))]
}
