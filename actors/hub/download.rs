//! Downloads files through `hf-hub` into the shared cache. Broken downloads are resumed, and complete ones are verified.

use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hf_hub::api::tokio::{Api, ApiBuilder, ApiError, ApiRepo};
use sha2::{Digest, Sha256};

use super::attempts::{self, STALL, repeated};
use super::cache::directory_name;
use super::directory;
use super::error::HubError;
use super::progress::Progress;
use super::reference::{ModelFormat, Wanted, WantedFile};
use super::sources::Hub;

/// Size of a chunk. A broken attempt loses at most one chunk, and one chunk is buffered in memory.
const CHUNK_BYTES: usize = 8 << 20;

impl Hub {
    /// Downloads what `wanted` names and returns what is loaded.
    pub(super) fn download(&self, wanted: &Wanted, progress: &impl Progress) -> Result<PathBuf, HubError> {
        let (format, paths) = self.download_all(wanted, progress)?;
        Ok(format.path(&paths).to_owned())
    }

    /// Downloads what `wanted` names and returns all of its files, at least one, the first shard first.
    pub(super) fn download_all(
        &self,
        wanted: &Wanted,
        progress: &impl Progress,
    ) -> Result<(ModelFormat, Vec<PathBuf>), HubError> {
        if self.offline {
            return Err(HubError::Offline { reference: wanted.to_string() });
        }
        let repository = self.describe(&wanted.repo, progress)?;
        let wanted = Wanted { repo: repository.name.clone(), file: wanted.file.clone() };
        let format = wanted.format(&repository.files);
        let files = match format {
            ModelFormat::Gguf => wanted.choose(&repository.files)?,
            ModelFormat::Safetensors => directory::before_shards(&wanted.repo, &repository.files)?,
        };
        if wanted.file == WantedFile::Default {
            progress.choice(&choice(&repository, format, &files[0]));
        }
        let fetch = |file: &String| self.fetch(&repository, file, progress);
        let mut paths = files.iter().map(fetch).collect::<Result<Vec<PathBuf>, _>>()?;
        if format == ModelFormat::Safetensors {
            let shards = repository.shards(&paths[paths.len() - 1])?;
            paths.extend(shards.iter().map(fetch).collect::<Result<Vec<_>, _>>()?);
            repository.check_unchanged(&paths, format)?;
        }
        Ok((format, paths))
    }

    /// Requests the file list of a repository.
    fn describe(&self, repo: &str, progress: &impl Progress) -> Result<Repository, HubError> {
        let request = async {
            let info = self.api()?.model(repo.to_owned()).info_request();
            info.send().await?.error_for_status()?.json::<serde_json::Value>().await.map_err(ApiError::from)
        };
        let timed = async { tokio::time::timeout(self.response_timeout, request).await };
        let answer = block_on_wanted(timed, progress)?
            .map_err(|_| HubError::Timeout { hub: self.name(), seconds: self.response_timeout.as_secs() })?
            .map_err(|error| self.explain(repo, &format!("the file list of {repo}"), error))?;
        let siblings = answer["siblings"].as_array().into_iter().flatten();
        let files = siblings.filter_map(|file| file["rfilename"].as_str().map(str::to_owned)).collect();
        // The spelling of the hub is used, so that the cache has one directory per repository.
        let name = answer["id"].as_str().filter(|name| name.eq_ignore_ascii_case(repo)).map(str::to_owned);
        let name = name.or_else(|| self.cache.spelling(repo)).unwrap_or_else(|| repo.to_owned());
        let commit = answer["sha"].as_str().unwrap_or("main").to_owned();
        Ok(Repository { name, commit, files })
    }

    /// Downloads and verifies one file, unless this version is cached.
    fn fetch(&self, repository: &Repository, file: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        let repo = &repository.name;
        let cached = self.cache.root().join(directory_name(repo)).join("snapshots").join(&repository.commit).join(file);
        if cached.is_file() {
            return Ok(cached);
        }
        let attempt = || {
            let meter = Meter { progress: progress.clone(), received: Arc::default() };
            block_on_wanted(self.attempt(repo, file, meter), progress)
        };
        let downloaded = repeated(file, progress, is_transient, attempt)?;
        let path = downloaded.map_err(|error| self.explain(repo, file, error))?;
        verify(&path, file)?;
        Ok(path)
    }

    /// One attempt. It ends with an error when nothing arrives for [`STALL`].
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

    pub(super) fn api(&self) -> Result<Api, ApiError> {
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

    /// Converts an error of the library.
    fn explain(&self, repo: &str, what: &str, error: ApiError) -> HubError {
        let (hub, repo) = (self.name(), repo.to_owned());
        match status(&error) {
            Some(401 | 404) => HubError::NoSuchRepository { hub, repo },
            Some(403) => HubError::Forbidden { hub, repo },
            _ => HubError::Request { hub, what: what.to_owned(), source: Box::new(error) },
        }
    }
}

/// The description of a repository by the hub.
struct Repository {
    name: String,
    commit: String,
    files: Vec<String>,
}

impl Repository {
    /// The shards that a downloaded index names, all of them in the repository.
    fn shards(&self, index: &Path) -> Result<Vec<String>, HubError> {
        let shards = directory::shards(index)?;
        let is_missing = |shard: &&String| !self.files.contains(shard);
        match shards.iter().find(is_missing) {
            Some(file) => Err(HubError::MissingFile { repo: self.name.clone(), file: file.clone() }),
            None => Ok(shards),
        }
    }

    /// Checks that all files are of the same commit.
    fn check_unchanged(&self, paths: &[PathBuf], format: ModelFormat) -> Result<(), HubError> {
        let is_same = paths.iter().all(|path| path.starts_with(format.path(paths)));
        if is_same { Ok(()) } else { Err(HubError::Updated(self.name.clone())) }
    }
}

/// Which format is downloaded, and why.
fn choice(repository: &Repository, format: ModelFormat, first: &str) -> String {
    let repo = &repository.name;
    match format {
        ModelFormat::Safetensors => format!("{repo}: downloading its safetensors, because it has no GGUF files"),
        ModelFormat::Gguf if directory::has_weights(&repository.files) => {
            format!("{repo}: downloading {first}; GGUF is preferred, and {repo}:safetensors is its other format")
        }
        ModelFormat::Gguf => format!("{repo}: downloading {first}; it has only GGUF files"),
    }
}

/// Reports progress and counts bytes for the watchdog.
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

/// As [`block_on`], until the download is cancelled.
///
/// # Errors
/// [`HubError::Cancelled`].
pub(super) fn block_on_wanted<T>(future: impl Future<Output = T>, progress: &impl Progress) -> Result<T, HubError> {
    let wanted = async {
        tokio::select! {
            biased;
            () = progress.cancelled() => Err(HubError::Cancelled),
            value = future => Ok(value),
        }
    };
    block_on(wanted)?
}

/// Runs a future on its own tokio runtime. All tasks that it spawned end with it.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, HubError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(HubError::io("start a runtime for", Path::new("downloads")))?;
    let result = runtime.block_on(future);
    // Dropping the runtime would wait for blocking name lookups, which may take longer than the timeout.
    runtime.shutdown_background();
    Ok(result)
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    }
}

/// Whether a retry may help.
fn is_transient(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) => attempts::is_transient(error),
        ApiError::IoError(error) => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false,
    }
}

/// Verifies a file in the cache. The blob of a large file is named by its SHA-256. Small files are named by a git hash,
/// and are checked when they are parsed.
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

/// The SHA-256 of a file, in hexadecimal.
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
