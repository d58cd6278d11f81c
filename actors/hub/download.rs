//! Downloads through `hf-hub` into the shared cache: resumed when cut off, checked when complete.

use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hf_hub::api::tokio::{Api, ApiBuilder, ApiError, ApiRepo};
use sha2::{Digest, Sha256};

use super::cache::directory_name;
use super::reference::Wanted;
use super::{Hub, HubError, Progress};

/// How often a file is begun anew after the connection broke; each attempt goes on where the last one stopped.
const ATTEMPTS: u32 = 5;

/// Without a byte for this long a download counts as broken.
const STALL: Duration = Duration::from_secs(60);

/// A broken attempt loses at most this much; also how much is held in memory at once.
const CHUNK_BYTES: usize = 8 << 20;

impl Hub {
    /// Downloads what `wanted` names and returns its first file.
    pub(super) fn download(&self, wanted: &Wanted, progress: &impl Progress) -> Result<PathBuf, HubError> {
        if self.offline {
            return Err(HubError::Offline { reference: wanted.to_string() });
        }
        let repository = self.describe(&wanted.repo)?;
        let wanted = Wanted { repo: repository.name.clone(), file: wanted.file.clone() };
        let files = wanted.choose(&repository.files)?;
        let paths: Vec<PathBuf> =
            files.iter().map(|file| self.fetch(&repository, file, progress)).collect::<Result<_, _>>()?;
        // `choose` returns at least one file.
        Ok(paths[0].clone())
    }

    /// Asks the hub what is in a repository.
    fn describe(&self, repo: &str) -> Result<Repository, HubError> {
        let asked = async {
            let request = self.api()?.model(repo.to_owned()).info_request();
            request.send().await?.error_for_status()?.json::<serde_json::Value>().await.map_err(ApiError::from)
        };
        let timed = async { tokio::time::timeout(self.answer_timeout, asked).await };
        let answer = block_on(timed)?
            .map_err(|_| HubError::Timeout { hub: self.hub_name(), seconds: self.answer_timeout.as_secs() })?
            .map_err(|error| self.explain(repo, &format!("the file list of {repo}"), error))?;
        let siblings = answer["siblings"].as_array().into_iter().flatten();
        let files = siblings.filter_map(|file| file["rfilename"].as_str().map(str::to_owned)).collect();
        // The hub says how the name is really spelled, which keeps one directory a repository in the cache.
        let name = answer["id"].as_str().filter(|name| name.eq_ignore_ascii_case(repo)).map(str::to_owned);
        let name = name.or_else(|| self.cache.spelling(repo)).unwrap_or_else(|| repo.to_owned());
        let commit = answer["sha"].as_str().unwrap_or("main").to_owned();
        Ok(Repository { name, commit, files })
    }

    /// Downloads one file, unless this very version is here, and checks it.
    fn fetch(&self, repository: &Repository, file: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        let repo = &repository.name;
        let here = self.cache.root().join(directory_name(repo)).join("snapshots").join(&repository.commit).join(file);
        if here.is_file() {
            return Ok(here);
        }
        let mut attempt = 1;
        let path = loop {
            let meter = Meter { progress: progress.clone(), received: Arc::default() };
            match block_on(self.attempt(repo, file, meter))? {
                Ok(path) => break path,
                Err(error) if attempt < ATTEMPTS && is_passing(&error) => {
                    progress.notice(&format!("{file}: {error}; trying again ({attempt} of {})", ATTEMPTS - 1));
                    std::thread::sleep(Duration::from_millis(200 << attempt));
                    attempt += 1;
                }
                Err(error) => return Err(self.explain(repo, file, error)),
            }
        };
        verify(&path, file)?;
        Ok(path)
    }

    /// One attempt; its future ends when no byte comes for too long.
    async fn attempt<P: Progress>(&self, repo: &str, file: &str, meter: Meter<P>) -> Result<PathBuf, ApiError> {
        let repository: ApiRepo = self.api()?.model(repo.to_owned());
        let received = meter.received.clone();
        let watchdog = async move {
            let mut before = u64::MAX;
            while before != received.load(Ordering::Relaxed) {
                before = received.load(Ordering::Relaxed);
                tokio::time::sleep(STALL).await;
            }
        };
        tokio::select! {
            path = repository.download_with_progress(file, meter) => path,
            () = watchdog => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "nothing arrived for a minute").into()),
        }
    }

    fn api(&self) -> Result<Api, ApiError> {
        let builder = ApiBuilder::from_cache(hf_hub::Cache::new(self.cache.root().to_owned()))
            .with_token(self.token.clone())
            .with_chunk_size(Some(CHUNK_BYTES))
            .with_user_agent("cuelight", env!("CARGO_PKG_VERSION"));
        match &self.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint.trim_end_matches('/').to_owned()),
            None => builder,
        }
        .build()
    }

    /// What an error of the library means for a person.
    fn explain(&self, repo: &str, what: &str, error: ApiError) -> HubError {
        let (hub, repo) = (self.hub_name(), repo.to_owned());
        match status(&error) {
            Some(401 | 404) => HubError::NoSuchRepository { hub, repo },
            Some(403) => HubError::Forbidden { hub, repo },
            _ => HubError::Request { hub, what: what.to_owned(), source: Box::new(error) },
        }
    }
}

/// A repository as the hub describes it.
struct Repository {
    name: String,
    commit: String,
    files: Vec<String>,
}

/// Counts bytes for the watchdog while they are shown.
#[derive(Clone)]
struct Meter<P> {
    progress: P,
    received: Arc<AtomicU64>,
}

impl<P: Progress> hf_hub::api::tokio::Progress for Meter<P> {
    async fn init(&mut self, size: usize, filename: &str) {
        self.progress.start(filename, size as u64);
    }

    async fn update(&mut self, size: usize) {
        self.received.fetch_add(size as u64, Ordering::Relaxed);
        self.progress.advance(size as u64);
    }

    async fn finish(&mut self) {
        self.progress.finish();
    }
}

/// Runs a future on a runtime of its own; when it ends, so does everything it spawned.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, HubError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(HubError::io("start a runtime for", Path::new("downloads")))?;
    let result = runtime.block_on(future);
    // Dropping it would wait for a name lookup that may take much longer than our patience.
    runtime.shutdown_background();
    Ok(result)
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    }
}

/// Whether trying again may help: the network broke, or the server was busy.
fn is_passing(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) if error.is_builder() || error.is_redirect() => false,
        ApiError::RequestError(_) => status(error).is_none_or(|status| status == 429 || status >= 500),
        ApiError::IoError(error) => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false,
    }
}

/// Compares a file in the cache with its name there, which for large files is the hub's sha256 of it.
/// (Small files are named by a git hash and are never models.)
fn verify(path: &Path, file: &str) -> Result<(), HubError> {
    let blob = path.canonicalize().map_err(HubError::io("read", path))?;
    let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if expected.len() != 64 || !expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let found = sha256(&blob)?;
    if found.eq_ignore_ascii_case(&expected) {
        return Ok(());
    }
    for damaged in [path, &blob] {
        std::fs::remove_file(damaged).map_err(HubError::io("remove", damaged))?;
    }
    Err(HubError::Checksum { file: file.to_owned(), expected, found })
}

/// The sha256 of a file, in hexadecimal.
pub(super) fn sha256(path: &Path) -> Result<String, HubError> {
    let mut file = File::open(path).map_err(HubError::io("read", path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(HubError::io("read", path))?;
        if count == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..count]);
    }
}
