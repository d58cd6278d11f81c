//! Downloads files of the hub into the shared cache. Broken downloads are resumed, and complete ones are verified. `hf-hub` knows
//! the addresses and the protocol.

use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};

use hf_hub::api::tokio::{Api, ApiBuilder, ApiError, Metadata};
use reqwest::header;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::attempts::{self, STALL, repeated};
use super::directory;
use super::error::HubError;
use super::gguf_names::best_projector;
use super::progress::Progress;
use super::reference::{ModelFormat, Wanted, WantedFile};
use super::snapshot::{CachedRepository, FileVersion, is_inside, is_name};
use super::sources::Hub;
use super::transfer::{Transfer, TransferError, open_part, remove_if_there};

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
        let mut snapshot = Snapshot { hub: self, repository: &repository, commit: repository.commit.clone() };
        let mut paths = snapshot.fetch_all(&files, progress)?;
        if format == ModelFormat::Safetensors {
            let shards = repository.shards(&paths[paths.len() - 1])?;
            paths.extend(snapshot.fetch_all(&shards, progress)?);
        }
        if format == ModelFormat::Gguf && self.projectors {
            snapshot.fetch_projector(progress)?;
        }
        // Only now, so that a model that was complete before is found until this one is.
        snapshot.make_current()?;
        Ok((format, paths))
    }

    /// Requests the file list of a repository.
    fn describe(&self, repo: &str, progress: &impl Progress) -> Result<Repository, HubError> {
        let request = async {
            let info = self.api()?.model(repo.to_owned()).info_request();
            info.send().await?.error_for_status()?.json::<serde_json::Value>().await.map_err(ApiError::from)
        };
        let timed = async { timeout(self.response_timeout, request).await };
        let answer = block_on_wanted(timed, progress)?
            .map_err(|_| HubError::Timeout { hub: self.name(), seconds: self.response_timeout.as_secs() })?
            .map_err(|error| self.explain(repo, &format!("the file list of {repo}"), error))?;
        let siblings = answer["siblings"].as_array().into_iter().flatten();
        let names = siblings.filter_map(|file| file["rfilename"].as_str());
        let files = names.filter(|name| is_inside(name)).map(str::to_owned).collect();
        // The spelling of the hub is used, so that the cache has one directory per repository.
        let name = answer["id"].as_str().filter(|name| name.eq_ignore_ascii_case(repo)).map(str::to_owned);
        let name = name.or_else(|| self.cache.spelling(repo)).unwrap_or_else(|| repo.to_owned());
        let commit = answer["sha"].as_str().filter(|commit| is_name(commit)).map(str::to_owned);
        Ok(Repository { name, commit, files })
    }

    /// One attempt to receive the data of a file, unless the cache has it.
    async fn attempt<P: Progress>(&self, repo: &str, file: &str, progress: &P) -> Result<FileVersion, FetchError> {
        let api = self.api()?;
        let url = api.model(repo.to_owned()).url(file);
        let metadata = timeout(STALL, api.metadata(&url)).await.map_err(|_| TransferError::Stalled)??;
        let version = FileVersion::new(metadata.commit_hash(), metadata.etag()).ok_or(FetchError::Names)?;
        let cached = CachedRepository::new(self.cache.root(), repo);
        let (blob, part) = (cached.blob(&version), cached.part(&version));
        if blob.is_file() {
            return Ok(version);
        }
        std::fs::create_dir_all(blob.parent().unwrap_or(&blob)).map_err(TransferError::Disk)?;
        let mut arriving = open_part(&part).await.map_err(TransferError::Disk)?;
        if blob.is_file() {
            // Another process has downloaded it meanwhile.
            remove_if_there(&part).map_err(TransferError::Disk)?;
            return Ok(version);
        }
        self.receive(&api, &url, (file, &metadata), &mut arriving, progress).await?;
        if let Some(expected) = version.sha256() {
            // Emptied and not removed, because another process may wait for its lock.
            check_sha256(&part, file, expected).inspect_err(|_| drop(arriving.set_len(0)))?;
        }
        std::fs::rename(&part, &blob).map_err(TransferError::Disk)?;
        Ok(version)
    }

    async fn receive<P: Progress>(
        &self,
        api: &Api,
        url: &str,
        (file, metadata): (&str, &Metadata),
        arriving: &mut File,
        progress: &P,
    ) -> Result<(), TransferError> {
        let request = |first_byte| api.client().get(url).header(header::RANGE, format!("bytes={first_byte}-"));
        let bytes = metadata.size() as u64;
        progress.start(file, bytes);
        Transfer { request: &request, bytes, progress }.attempt(arriving).await
    }

    pub(super) fn api(&self) -> Result<Api, ApiError> {
        let builder = ApiBuilder::from_cache(hf_hub::Cache::new(self.cache.root().to_owned()))
            .with_token(self.token.clone())
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

/// Why an attempt to receive a file failed.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("the hub named its commit or its data in a way that is no file name")]
    Names,
    #[error(transparent)]
    Other(#[from] HubError),
}

impl FetchError {
    /// Whether a retry may help.
    fn is_transient(&self) -> bool {
        match self {
            FetchError::Api(ApiError::RequestError(error)) => attempts::is_transient(error),
            FetchError::Transfer(error) => error.is_transient(),
            FetchError::Api(_) | FetchError::Names | FetchError::Other(_) => false,
        }
    }

    /// The error of the download of `what`.
    fn explain(self, hub: &Hub, repo: &str, what: &str) -> HubError {
        match self {
            FetchError::Api(error) => hub.explain(repo, what, error),
            FetchError::Transfer(TransferError::Http(error)) => hub.explain(repo, what, error.into()),
            FetchError::Other(error) => error,
            error => HubError::Request { hub: hub.name(), what: what.to_owned(), source: Box::new(error) },
        }
    }
}

/// The files of a repository at one commit.
struct Snapshot<'a> {
    hub: &'a Hub,
    repository: &'a Repository,
    /// `None` until it is known.
    commit: Option<String>,
}

impl Snapshot<'_> {
    fn cached(&self) -> CachedRepository {
        CachedRepository::new(self.hub.cache.root(), &self.repository.name)
    }

    fn fetch_all(&mut self, files: &[String], progress: &impl Progress) -> Result<Vec<PathBuf>, HubError> {
        files.iter().map(|file| self.fetch(file, progress)).collect()
    }

    /// Downloads the projector file of the repository, if it has one.
    fn fetch_projector(&mut self, progress: &impl Progress) -> Result<(), HubError> {
        let Some(file) = best_projector(&self.repository.files) else { return Ok(()) };
        let file = file.to_owned();
        self.fetch(&file, progress).map(drop)
    }

    /// Downloads and verifies a file, unless it is cached.
    fn fetch(&mut self, file: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        let (hub, repo) = (self.hub, &self.repository.name);
        let cached = self.commit.as_ref().map(|commit| self.cached().file(commit, file));
        if let Some(path) = cached.filter(|path| path.is_file()) {
            return Ok(path);
        }
        let attempt = || block_on_wanted(hub.attempt(repo, file, progress), progress);
        let version = repeated(file, progress, FetchError::is_transient, attempt)?;
        let version = version.map_err(|error| error.explain(hub, repo, file))?;
        if *self.commit.get_or_insert_with(|| version.commit.clone()) != version.commit {
            return Err(HubError::Updated(repo.clone()));
        }
        self.cached().link(&version, file)
    }

    /// Makes the commit the current one of the cache.
    fn make_current(&self) -> Result<(), HubError> {
        self.commit.as_ref().map_or(Ok(()), |commit| self.cached().set_main(commit))
    }
}

/// The description of a repository by the hub.
struct Repository {
    name: String,
    /// The current commit, if the hub states it.
    commit: Option<String>,
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

/// Compares a file with its SHA-256.
fn check_sha256(path: &Path, file: &str, expected: &str) -> Result<(), HubError> {
    let found = sha256(path)?;
    if found.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(HubError::Checksum { file: file.to_owned(), expected: expected.to_owned(), found })
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
